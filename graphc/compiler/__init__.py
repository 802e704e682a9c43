"""From a network and options to a plan and a program; batches, families and sizes of plans."""
