"""Instances whose least height is known, and a checker that shares no code with the package."""


def overlaps(lower, upper, size, offsets):
    """Pairs of buffers that share a time and a byte, each pair once."""
    found = []
    for i in range(len(lower)):
        for j in range(i):
            in_time = lower[i] < upper[j] and lower[j] < upper[i]
            in_place = offsets[i] < offsets[j] + size[j] and offsets[j] < offsets[i] + size[i]
            if in_time and in_place and size[i] and size[j]:
                found.append((j, i))
    return found


def most_live(lower, upper, size):
    """The most bytes live at one time, time by time."""
    return max(
        (sum(s for a, b, s in zip(lower, upper, size, strict=True) if a <= t < b) for t in lower),
        default=0,
    )


def least_height(lower, upper, size):
    """By all orders in which each buffer is put as low as the placed ones let it.

    Some order of the offsets of a lowest packing finds that packing, or one as low.
    """
    best = sum(size)

    def place(placed, left):
        nonlocal best
        if max((offset + size[i] for i, offset in placed), default=0) >= best:
            return
        if not left:
            best = max((offset + size[i] for i, offset in placed), default=0)
        for i in left:
            under = [
                offset + size[j]
                for j, offset in placed
                if lower[i] < upper[j] and lower[j] < upper[i]
            ]
            place([*placed, (i, max(under, default=0))], left - {i})

    place([], frozenset(range(len(size))))
    return best
