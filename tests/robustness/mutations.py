"""Random changes of texts, bytes and JSON: by the character, and by what a file is made of."""

import re

STRANGE = [
    None, True, False, "", "view", "new", "%0", "é", "\x1b[2J", "nan", [], {}, [0], -1, 0, 1, 2, 4,
    256, 1.5, -0.0, 2**31, 2**53, 2**62, 2**63, 10**12, 10**30, 1e300, 1e-300,
]  # fmt: skip
"""What may stand in JSON where something else is expected."""

NUMBERS = (
    "0", "-1", "1", "2", "3", "65", "4096", "2147483648", "1000000000000", "9223372036854775808",
    "9" * 18, "1" + "0" * 40, "nan", "inf", "-inf", "1e300", "-0.0", "0.5", "1.5", "1e-300", "True",
    "None", "''", "()", "(1,)", "(0, 0)",
)  # fmt: skip
"""What may stand in a text where a number is expected."""

NUMBER = re.compile(r"-?\b\d+(?:\.\d+)?(?:e-?\d+)?")
CHARACTERS = "0123456789 ,%@=()[]{}'\"m.-_:/\\#é\t\x00\x1b\n"


def places(content, path=()):
    """Paths of all that can be changed."""
    if isinstance(content, dict):
        inner = content.items()
    elif isinstance(content, list):
        inner = enumerate(content)
    else:
        inner = ()
    for key, part in inner:
        yield (*path, key)
        yield from places(part, (*path, key))


def mutate(content, random):
    """Change, add or remove one thing anywhere in what JSON can hold."""
    *path, key = random.choice(list(places(content)))
    holder = content
    for step in path:
        holder = holder[step]
    old = holder[key]
    match random.randrange(7):
        case 0:
            holder[key] = random.choice(STRANGE)
        case 1 if isinstance(holder, dict):
            holder[f"{key}."] = holder.pop(key)
        case 2:
            del holder[key]
        case 3 if isinstance(holder, list):
            holder.insert(random.randrange(len(holder) + 1), old)
        case 4:
            others = list(holder.values()) if isinstance(holder, dict) else holder
            holder[key] = random.choice(others)
        case 5 if isinstance(old, str):
            holder[key] = mutated_text(old, random)
        case _ if type(old) is int:
            holder[key] = old + random.choice([-256, -4, -1, 1, 4, 256, old])
        case _ if isinstance(old, str) and old:
            at = random.randrange(len(old))
            holder[key] = old[:at] + random.choice(CHARACTERS) + old[at + 1 :]
        case _:
            holder[key] = random.choice(STRANGE)


def mutated_text(text, random):
    """A text with one change: of a number, a line, a word or a few characters."""
    match random.randrange(8):
        case 0 | 1 | 2 if found := list(NUMBER.finditer(text)):
            start, end = random.choice(found).span()
            return text[:start] + random.choice(NUMBERS) + text[end:]
        case 3:
            lines = text.split("\n")
            return "\n".join(_moved(lines, random))
        case 4:
            words = re.split(r"(\W+)", text)
            return "".join(_moved(words, random))
        case 5 if len(text) > 1:
            return text[: random.randrange(len(text))]
        case _:
            start = random.randrange(len(text) + 1)
            end = min(len(text), start + random.randrange(3))
            inserted = "".join(random.choices(CHARACTERS, k=random.randrange(3)))
            return text[:start] + inserted + text[end:]


def mutated_attribute(text, random):
    """A text with another number somewhere in braces, if there is one."""
    found = [
        (braces.start() + number.start(), braces.start() + number.end())
        for braces in re.finditer(r"\{[^{}\n]+\}", text)
        for number in NUMBER.finditer(braces[0])
    ]
    if not found:
        return text
    start, end = random.choice(found)
    return text[:start] + random.choice(NUMBERS) + text[end:]


def _moved(parts, random):
    """Parts of which one is removed, repeated, or exchanged with another."""
    one, other = random.randrange(len(parts)), random.randrange(len(parts))
    match random.randrange(3):
        case 0:
            return parts[:one] + parts[one + 1 :]
        case 1:
            return [*parts[:one], parts[other], *parts[one:]]
    moved = list(parts)
    moved[one], moved[other] = moved[other], moved[one]
    return moved


def mutated_bytes(content, random):
    """Bytes with one change: flipped bits, a piece removed, repeated or cut off, or random ones."""
    start = random.randrange(len(content) + 1)
    end = min(len(content), start + random.choice([1, 1, 8, 64]))
    match random.randrange(5):
        case 0:
            return content[:start]
        case 1:
            return content[:start] + content[end:]
        case 2:
            return content[:start] + content[start:end] * 2 + content[end:]
        case 3:
            return content[:start] + random.randbytes(end - start) + content[end:]
    flipped = bytes(byte ^ (1 << random.randrange(8)) for byte in content[start:end])
    return content[:start] + flipped + content[end:]
