#!/usr/bin/env python3
"""Makes the vectors of this directory from docs/design/wire, without any of Shoal's code.

Uses the hash of ../session/make.py, and needs what that needs.
"""

import importlib.util
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
SPEC = importlib.util.spec_from_file_location("base", os.path.join(HERE, "../session/make.py"))
base = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(base)

LEADING, FOLLOWING = 0, 1


def identifier(secret, end, epoch, lane):
    about = bytes([end, lane, 0])
    return base.kdf(secret, "shoal v1 hop address", about, struct.pack(">I", epoch))[:8]


def write(name, text, lines):
    with open(os.path.join(HERE, name), "w") as file:
        file.write(f"# {text}\n# Source: make.py in this directory.\n")
        for value, about in lines:
            file.write(f"{value.hex(' ')}  # {about}\n")


secret = bytes([7]) * 32
lines = [(base.kdf(secret, "shoal v1 hop tag")[:4], "tag")]
for end, epoch, lane in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0xFFFFFFFF, 15)):
    name = "following" if end else "leading"
    lines.append((identifier(secret, end, epoch, lane), f"{name} end, epoch {epoch}, lane {lane}"))
write("schedule.hex", "Tag and interface identifiers of the shift secret 7*32.", lines)

made = base.kdf(secret, "shoal v1 hop length", struct.pack(">I", 0))
lines = []
for epoch, (drawn,) in enumerate(struct.iter_unpack(">H", made)):
    lines.append((struct.pack(">I", 0xC000 + drawn // 2), f"epoch {epoch}"))
write("lengths.hex", "Lengths of the first epochs of the shift secret 7*32, in 1/65,536 of the interval.", lines)

forth, back = bytes([14]) * 32, bytes([15]) * 32
made = base.kdf(forth, "shoal v1 hop", b"link", back)
write("secret.hex", "The shift secret of a link whose split keys are 14*32 and 15*32.", [(made, "secret")])

# Rendezvous of two neighbours: identities from the seeds 2*32 and 3*32, network secret 1*32.
one, two = base.Identity(bytes([2]) * 32), base.Identity(bytes([3]) * 32)
network, other = bytes([1]) * 32, bytes([4]) * 32
shared = base.dh(one.dh, base.public(two.dh))
assert shared == base.dh(two.dh, base.public(one.dh))
meets = [base.kdf(shared, "shoal v1 rendezvous", b"link", secret) for secret in (network, other)]
about = "network secret 1*32", "network secret 4*32"
write("meeting.hex", "Rendezvous secrets of the identities with the seeds 2*32 and 3*32.", zip(meets, about))

unix_s = 1_800_000_123
lines = []
for back in (-1, 0, 1):
    for end, name in ((0, "leading"), (1, "following")):
        epoch = unix_s // 600 + back
        lines.append((identifier(meets[0], end, epoch, 0), f"{name} end, epoch {epoch}"))
write("rendezvous.hex", f"Identifiers of the first secret of meeting.hex at Unix time {unix_s}.", lines)
