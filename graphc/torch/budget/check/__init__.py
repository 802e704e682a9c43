"""Proof that emitted graphs compute what was traced, within the planned bytes."""
