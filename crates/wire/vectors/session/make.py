#!/usr/bin/env python3
"""Makes the vectors of this directory from docs/design/wire, without any of Shoal's code.

Needs the Python package `cryptography` with ML-KEM. The responder's KEM randomness is drawn, so a
second run gives another response; everything else is fixed.
"""

import hashlib
import hmac
import os
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

# The wire version.
VERSION = bytes([5])
HERE = os.path.dirname(os.path.abspath(__file__))


# BLAKE3, section 2 of its paper; two chunks are enough here.
IV = [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19]
PERM = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
COLUMNS = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
DIAGONALS = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]


def ror(x, n):
    return ((x >> n) | (x << (32 - n))) & 0xFFFFFFFF


def blake3_compress(cv, block, length, flags, counter=0):
    v = list(cv) + IV[:4] + [counter, 0, length, flags]
    m = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(COLUMNS + DIAGONALS):
            for x, r1, r2 in ((m[2 * i], 16, 12), (m[2 * i + 1], 8, 7)):
                v[a] = (v[a] + v[b] + x) & 0xFFFFFFFF
                v[d] = ror(v[d] ^ v[a], r1)
                v[c] = (v[c] + v[d]) & 0xFFFFFFFF
                v[b] = ror(v[b] ^ v[c], r2)
        m = [m[p] for p in PERM]
    return [v[i] ^ v[i + 8] for i in range(8)]


def blake3_chunk(key, data, counter, root):
    cv = key
    blocks = [data[i : i + 64] for i in range(0, len(data), 64)] or [b""]
    for i, block in enumerate(blocks):
        last = i == len(blocks) - 1
        flags = 16 | (1 if i == 0 else 0) | (2 if last else 0) | (8 if last and root else 0)
        cv = blake3_compress(cv, block, len(block), flags, counter)
    return cv


def blake3_keyed(key, data):
    key = struct.unpack("<8I", key)
    if len(data) <= 1024:
        cv = blake3_chunk(key, data, 0, True)
    else:
        assert len(data) <= 2048
        halves = [blake3_chunk(key, data[i * 1024 : (i + 1) * 1024], i, False) for i in (0, 1)]
        both = struct.pack("<16I", *halves[0], *halves[1])
        cv = blake3_compress(key, both, 64, 16 | 4 | 8)
    return struct.pack("<8I", *cv)


def kdf(key, label, *parts):
    data = b"".join(struct.pack(">I", len(p)) + p for p in (label.encode(), *parts))
    return blake3_keyed(key, data)


# The 2,400-byte form of an ML-KEM-768 private key (FIPS 203, algorithms 7, 8, 13, 16).
def ml_kem_expanded(seed, public):
    d, z = seed[:32], seed[32:]
    sigma = hashlib.sha3_512(d + b"\x03").digest()[32:]
    q, out = 3329, b""
    for n in range(3):
        noise = hashlib.shake_256(sigma + bytes([n])).digest(128)
        bits = [(byte >> i) & 1 for byte in noise for i in range(8)]
        f = [(bits[4 * i] + bits[4 * i + 1] - bits[4 * i + 2] - bits[4 * i + 3]) % q for i in range(256)]
        k, length = 1, 128
        while length >= 2:
            for start in range(0, 256, 2 * length):
                zeta = pow(17, int(f"{k:07b}"[::-1], 2), q)
                k += 1
                for j in range(start, start + length):
                    t = zeta * f[j + length] % q
                    f[j + length], f[j] = (f[j] - t) % q, (f[j] + t) % q
            length //= 2
        packed = sum(c << (12 * i) for i, c in enumerate(f))
        out += packed.to_bytes(384, "little")
    return out + public + hashlib.sha3_256(public).digest() + z


# AEGIS-256, -256X2 and -256X4 (RFC 10032): one AES round, then the cipher on one, two or four
# lanes of six blocks.
def double(x):
    return (x << 1) ^ (0x11B if x & 0x80 else 0)


def sbox():
    box, p, q = [0x63] * 256, 1, 1
    while True:
        p ^= double(p)
        for shift in (1, 2, 4):
            q ^= q << shift & 0xFF
        q ^= 0x09 if q & 0x80 else 0
        turned = q
        for n in range(1, 5):
            turned ^= (q << n | q >> (8 - n)) & 0xFF
        box[p] = turned ^ 0x63
        if p == 1:
            return box


SBOX = sbox()


def aes_round(block, key):
    out = b""
    for column in range(4):
        a = [SBOX[block[4 * ((column + row) % 4) + row]] for row in range(4)]
        out += bytes(double(a[i]) ^ double(a[(i + 1) % 4]) ^ a[(i + 1) % 4] ^ a[(i + 2) % 4]
                     ^ a[(i + 3) % 4] for i in range(4))
    return xor(out, key)


def aegis_update(state, blocks):
    for i, (s, m) in enumerate(zip(state, blocks)):
        state[i] = [aes_round(s[5], xor(s[0], m))] + [aes_round(s[n - 1], s[n]) for n in range(1, 6)]


# Lanes of each suite.
LANES = {3: 4, 4: 1, 5: 2}


def aegis_256(lanes, key, nonce, plain, aad):
    c0 = bytes.fromhex("000101020305080d1522375990e97962")
    c1 = bytes.fromhex("db3d18556dc22ff12011314273b528dd")
    k0, k1, n0, n1 = key[:16], key[16:], nonce[:16], nonce[16:]
    first = [xor(k0, n0), xor(k1, n1), c1, c0, xor(k0, c0), xor(k1, c1)]
    state, rate = [list(first) for _ in range(lanes)], 16 * lanes
    for m in (k0, k1, xor(k0, n0), xor(k1, n1)) * 4:
        for i, s in enumerate(state):
            # A single lane has no such constant.
            lane = bytes([i, lanes - 1]) + bytes(14)
            s[3], s[5] = xor(s[3], lane), xor(s[5], lane)
        aegis_update(state, [m] * lanes)
    for at in range(0, len(aad), rate):
        block = aad[at : at + rate].ljust(rate, b"\0")
        aegis_update(state, [block[16 * i : 16 * i + 16] for i in range(lanes)])
    sealed = b""
    for at in range(0, len(plain), rate):
        block = plain[at : at + rate].ljust(rate, b"\0")
        stream = b"".join(xor(xor(s[1], s[4]), xor(s[5], bytes(a & b for a, b in zip(s[2], s[3]))))
                          for s in state)
        sealed += xor(block, stream)
        aegis_update(state, [block[16 * i : 16 * i + 16] for i in range(lanes)])
    sizes = struct.pack("<QQ", 8 * len(aad), 8 * len(plain))
    last = [xor(s[3], sizes) for s in state]
    for _ in range(7):
        aegis_update(state, last)
    tag = bytes(16)
    for s in state:
        for block in s:
            tag = xor(tag, block)
    return sealed[: len(plain)] + tag


class Noise:
    def __init__(self, name, prologue, responder):
        self.h = hashlib.sha256(name).digest() if len(name) > 32 else name.ljust(32, b"\0")
        self.ck, self.k, self.n = self.h, None, 0
        self.mix_hash(prologue)
        self.mix_hash(responder)

    def mix_hash(self, data):
        self.h = hashlib.sha256(self.h + data).digest()

    def hkdf(self, data):
        temp = hmac.new(self.ck, data, "sha256").digest()
        one = hmac.new(temp, b"\x01", "sha256").digest()
        return one, hmac.new(temp, one + b"\x02", "sha256").digest()

    def mix_key(self, data):
        (self.ck, self.k), self.n = self.hkdf(data), 0

    def seal(self, plain):
        sealed = AESGCM(self.k).encrypt(struct.pack(">IQ", 0, self.n), plain, self.h)
        self.n += 1
        self.mix_hash(sealed)
        return sealed


def public(secret):
    return secret.public_key().public_bytes_raw()


def dh(secret, point):
    return secret.exchange(X25519PublicKey.from_public_bytes(point))


class Identity:
    def __init__(self, seed):
        self.dh = X25519PrivateKey.from_private_bytes(kdf(seed, "shoal identity x25519 v1"))
        sign = Ed25519PrivateKey.from_private_bytes(kdf(seed, "shoal identity ed25519 v1"))
        self.public = public(self.dh) + public(sign)


def gcm_zero(key, body):
    return AESGCM(key).encrypt(bytes(12), body, b"")


def seal_request(secret, role, responder, lead, body):
    key = kdf(secret, "shoal v1 handshake request", role, responder)
    return lead + gcm_zero(kdf(key, "seal", lead), body)


def seal_reply(secret, role, responder, lead, salt, body, *shared):
    key = kdf(secret, "shoal v1 handshake reply", role, responder)
    return kdf(key, "token", lead)[:16] + salt + gcm_zero(kdf(key, "seal", lead, salt, *shared), body)


def mask(key, sample):
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(sample)[:4]


def xor(a, b):
    return bytes(x ^ y for x, y in zip(a, b))


def frame(split_key, role, suite, direction, lane, index_key, index, counter, aad, plain,
          level=0, encrypted=True):
    about = VERSION + bytes([suite, level, direction, lane])
    key = kdf(split_key, "shoal v1 frame key", role, about)
    nonce = struct.pack(">24xQ" if suite >= 3 else ">4xQ", counter)
    cipher = {1: AESGCM, 2: ChaCha20Poly1305}.get(suite)
    seal = cipher(key).encrypt if cipher else lambda n, p, a: aegis_256(LANES[suite], key, n, p, a)
    if encrypted:
        sealed = seal(nonce, plain, aad)
    else:
        sealed = plain + seal(nonce, b"", plain if level == 1 else b"")
    sample = sealed[-16:]
    counter_key = kdf(split_key, "shoal v1 counter mask key", role, about)
    index |= lane << 20
    head = xor(struct.pack(">I", index), mask(index_key, sample))
    return head + xor(struct.pack(">I", counter), mask(counter_key, sample)) + sealed


def write(name, about, data):
    lines = [f"# {line}" for line in ["From docs/design/wire by make.py, without Shoal's code."] + about]
    lines += [data[i : i + 48].hex() for i in range(0, len(data), 48)]
    with open(os.path.join(HERE, name + ".hex"), "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


def main():
    secret, role = bytes([1] * 32), b"link"
    initiator, responder = Identity(bytes([3] * 32)), Identity(bytes([2] * 32))
    eph_i = X25519PrivateKey.from_private_bytes(bytes([4] * 32))
    eph_r = X25519PrivateKey.from_private_bytes(bytes([10] * 32))
    kem_seed = bytes([5] * 64)
    kem = MLKEM768PrivateKey.from_seed_bytes(kem_seed)
    kem_public = kem.public_key().public_bytes_raw()
    lead, salt = bytes([6] * 16), bytes([11] * 16)
    static_r = public(responder.dh)
    noise = Noise(b"Noise_IKhfs_25519+MLKEM768_AESGCM_SHA256", b"shoal " + VERSION + b"link" + lead + bytes(12),
                  static_r)

    first = public(eph_i)
    noise.mix_hash(first)
    noise.mix_key(dh(eph_i, static_r))
    first += noise.seal(kem_public)
    first += noise.seal(public(initiator.dh))
    noise.mix_key(dh(initiator.dh, static_r))
    said = struct.pack(">I32sQQBB", 0x01000002, bytes([7] * 32), 8, 9_042, 3, 2 << 4 | 1)
    first += noise.seal(said)
    shared_key = noise.hkdf(b"shoal response")[0]
    body = (b"\x01" + VERSION + bytes(12) + struct.pack(">I", 9) + first).ljust(1440 - 32, b"\0")
    secrets = ["network secret 01*32, responder's seed 02*32, initiator's seed 03*32, R 06*16"]
    write("request", secrets + ["ephemeral 04*32, KEM seed 05*64; payload: index 01000002, mask key",
          "07*32, incarnation 8, timestamp 9042, suites 3, processor 2, lanes 2"],
          seal_request(secret, role, responder.public, lead, body))
    write("kem-secret", ["The KEM key of request.hex in the form of 2,400 bytes of FIPS 203."],
          ml_kem_expanded(kem_seed, kem_public))
    bad = bytearray(body)
    bad[1] = 1
    write("bad-version", secrets + ["The request with version 1."],
          seal_request(secret, role, responder.public, lead, bytes(bad)))
    bad = bytearray(body)
    bad[14:18] = struct.pack(">I", 10)
    write("bad-shown", secrets + ["The request with a shown time that differs from its Noise message."],
          seal_request(secret, role, responder.public, lead, bytes(bad)))
    bad[14:18] = struct.pack(">I", 86_401)
    write("bad-date", secrets + ["The request dated a day and a second after 1970."],
          seal_request(secret, role, responder.public, lead, bytes(bad)))
    bad = bytearray(body)
    bad[-1] = 1
    write("bad-padding", secrets + ["The request with a last byte of padding that isn't zero."],
          seal_request(secret, role, responder.public, lead, bytes(bad)))
    bad = bytearray(body)
    bad[18 + 40] ^= 1
    write("bad-noise", secrets + ["The request with a bit of e1 changed, under a good outer seal."],
          seal_request(secret, role, responder.public, lead, bytes(bad)))
    bad = bytearray(body)
    bad[2:14] = bytes([13] * 12)
    write("bad-cookie", secrets + ["The request with a cookie that its Noise message does not cover."],
          seal_request(secret, role, responder.public, lead, bytes(bad)))
    write("bad-lead", secrets + ["The request with another lead, R 10*16, than its Noise message covers."],
          seal_request(secret, role, responder.public, bytes([16] * 16), body))
    write("bad-role", secrets + ["The request sealed for a host pair."],
          seal_request(secret, b"edge", responder.public, lead, body))

    removed(secret, (role, responder.public), lead, salt, secrets, shared_key)
    second = public(eph_r)
    noise.mix_hash(second)
    noise.mix_key(dh(eph_r, public(eph_i)))
    shared, ciphertext = kem.public_key().encapsulate()
    second += noise.seal(ciphertext)
    noise.mix_key(shared)
    noise.mix_key(dh(eph_r, public(initiator.dh)))
    second += noise.seal(struct.pack(">I32sBBB", 0x05000007, bytes([12] * 32), 1, 4 << 4 | 1, 1))
    forth, back = noise.hkdf(b"")
    body = (b"\x02" + VERSION + second).ljust(1440 - 48, b"\0")
    write("response", secrets + ["ephemeral 0a*32, S 0b*16; payload: index 05000007, mask key 0c*32,",
          "suite 1, processor 4, lanes 2, suites 1"],
          seal_reply(secret, role, responder.public, lead, salt, body, shared_key))
    write("bad-response", secrets + ["The response sealed like a cookie reply, without H."],
          seal_reply(secret, role, responder.public, lead, salt, body))
    write("split", ["The keys that follow from request.hex and response.hex: forth, then back."], forth + back)
    body = (b"\x03" + VERSION + bytes([13] * 12)).ljust(192 - 48, b"\0")
    write("cookie", secrets + ["S 0b*16; a cookie reply with cookie 0d*12."],
          seal_reply(secret, role, responder.public, lead, salt, body))

    forth, back = bytes([14] * 32), bytes([15] * 32)
    given = ["Split keys 0e*32 and 0f*32, index mask key 0c*32, index 05000007."]
    plain = b"\x02" + bytes(range(167))
    write("frame-link", given + ["Link, AES-256-GCM, initiator to responder, lane 1, counter 5."],
          frame(forth, b"link", 1, 0, 1, bytes([12] * 32), 0x05000007, 5, b"", plain))
    write("frame-chacha", given + ["Link, ChaCha20-Poly1305, responder to initiator, lane 0, counter 2^28."],
          frame(back, b"link", 2, 1, 0, bytes([12] * 32), 0x05000007, 1 << 28, b"", plain))
    routed = bytes.fromhex("00000002 0001 00000001 0003 01 00 20")
    assert aegis_256(4, bytes(range(32)), bytes(range(16, 48)), b"", b"").hex() \
        == "3b7fee6cee7bf17888ad11ed2397beb4"  # the RFC's first test vector
    write("frame-aegis", given + ["Link, AEGIS-256X4, initiator to responder, lane 0, counter 77."],
          frame(forth, b"link", 3, 0, 0, bytes([12] * 32), 0x05000007, 77, b"", plain))
    write("frame-aegis-256", given + ["Link, AEGIS-256, initiator to responder, lane 0, counter 78."],
          frame(forth, b"link", 4, 0, 0, bytes([12] * 32), 0x05000007, 78, b"", plain))
    write("frame-aegis-256x2", given + ["Link, AEGIS-256X2, initiator to responder, lane 0, counter 79."],
          frame(forth, b"link", 5, 0, 0, bytes([12] * 32), 0x05000007, 79, b"", plain))
    plain = b"\x03" + bytes(range(127))
    write("frame-edge", given + ["Hosts, AES-256-GCM, initiator to responder, lane 0, counter 0; the routed",
          "header stands before it."],
          routed + frame(forth, b"edge", 1, 0, 0, bytes([12] * 32), 0x05000007, 0, routed[:13], plain))
    write("frame-edge-aegis", given + ["Hosts, AEGIS-256X4, responder to initiator, lane 1, counter 1; the",
          "routed header stands before it."],
          routed + frame(back, b"edge", 3, 1, 1, bytes([12] * 32), 0x05000007, 1, routed[:13], plain))
    levels(forth, back)


def removed(secret, to, lead, salt, secrets, shared_key):
    body = (b"\x08" + VERSION + b"\x01" + struct.pack(">I", 20_785)).ljust(1440 - 48, b"\0")
    write("removed", secrets + ["S 0b*16; removed by a registrar on day 20785, sealed like a response."],
          seal_reply(secret, *to, lead, salt, body, shared_key))
    write("bad-removed", secrets + ["removed.hex sealed like a cookie reply, without H."],
          seal_reply(secret, *to, lead, salt, body))


def levels(forth, back):
    given = ["Split keys 0e*32 and 0f*32, index mask key 0c*32, index 05000007, two encrypted lanes."]
    plain = b"\x04" + bytes(range(167))

    def made(split_key, suite, direction, lane, counter, level, encrypted=False):
        return frame(split_key, b"link", suite, direction, lane, bytes([12] * 32), 0x05000007,
                     counter, b"", plain, level, encrypted)

    write("frame-authenticate", given + ["AES-256-GCM, authenticate, initiator to responder, lane 2, counter 7."],
          made(forth, 1, 0, 2, 7, 1))
    write("frame-none", given + ["ChaCha20-Poly1305, none, responder to initiator, lane 2, counter 8."],
          made(back, 2, 1, 2, 8, 2))
    write("frame-authenticate-aegis", given + ["AEGIS-256X4, authenticate, initiator to responder, lane 2, counter 10."],
          made(forth, 3, 0, 2, 10, 1))
    write("frame-none-aegis", given + ["AEGIS-256X4, none, initiator to responder, lane 2, counter 11."],
          made(forth, 3, 0, 2, 11, 2))
    write("frame-none-control", given + ["AES-256-GCM, none, initiator to responder, the encrypted lane 1, counter 9."],
          made(forth, 1, 0, 1, 9, 2, True))
    bad = bytearray(made(forth, 1, 0, 2, 7, 1))
    bad[100] ^= 1
    write("bad-frame-authenticate", given + ["frame-authenticate with one bit of its body changed."], bytes(bad))
    write("bad-frame-level", given + ["frame-authenticate by a sender that believes the session's level is none."],
          made(forth, 1, 0, 2, 7, 2))
    write("bad-frame-lane", given + ["frame-authenticate with its lane encrypted."],
          made(forth, 1, 0, 2, 7, 1, True))


if __name__ == "__main__":
    main()
