"""How two hosts prove to each other that they know the job's key, before either reads anything else of the other.

Four frames of fixed length, so that nothing of a stranger is ever parsed. Both prefaces are sent at once:

    both      preface: the protocol's name and version, a nonce
    member    claim: its rank, its incarnation, the one of host 0 that it knows, digests of its job; HMAC over them
              and both nonces
    host 0    answer: a status, its own incarnation; HMAC over these, the claim and both nonces

The nonces are new for every connection, so a recorded proof is of no use; the labels differ by role, so a proof cannot be
sent back to where it came from. From the same nonces both sides derive a key for each direction, with which `Seal`
authenticates every message after it. HMAC-SHA256 is RFC 2104's with FIPS 180-4's hash.
"""

from __future__ import annotations

import hmac
import os
import struct

from trainshed.base.record import Record

VERSION = 4  # of the protocol; 1 was JSON from the first byte on, 2 did not name the stop signal, 3 was ready at once
_NAME = b"trainshed roster "
_NONCE_BYTES = 32
_MAC_BYTES = 32
INCARNATION_BYTES = 16
DIGEST_BYTES = 8  # of each part of the job
PARTS = ("job name", "hosts", "program", "hyperparameters")
PREFACE_BYTES = len(_NAME) + 3 + _NONCE_BYTES
_CLAIM = struct.Struct(f">I{INCARNATION_BYTES}s{INCARNATION_BYTES}s{DIGEST_BYTES * len(PARTS)}s")
CLAIM_BYTES = _CLAIM.size + _MAC_BYTES
_ANSWER = struct.Struct(f">B{INCARNATION_BYTES}s")
ANSWER_BYTES = _ANSWER.size + _MAC_BYTES
_SEAL_BYTES = 16  # of each message's HMAC

_WELCOME, _UNPROVEN = 0, 1


class NotOurs(Exception):
    """The other side does not speak this protocol. version: the one that it speaks, 0 for none that we know."""

    def __init__(self, version: int = 0) -> None:
        super().__init__("not the roster of trainshed" if not version else f"version {version} of the roster's protocol")
        self.version = version


class Unproven(Exception):
    """The other side does not know the job's key. rank: which host it calls itself, -1 where it says nothing."""

    def __init__(self, rank: int = -1) -> None:
        super().__init__("no proof of the job's key")
        self.rank = rank


class JobKey(Record):
    """The key that the hosts of one job share.

    secret: 32 bytes.
    digests: of the parts of the job, in the order of `PARTS`; each keyed with the secret.
    named: whether the secret stands for itself (a token was given), so that hosts with another job can prove it, too.
    """

    secret: bytes
    digests: bytes = bytes(DIGEST_BYTES * len(PARTS))
    named: bool = False


class Claim(Record):
    """Who a host says it is.

    incarnation: random bytes that tell this process from one that is started in its place.
    leader: the incarnation of host 0 with which its job has started, zeros before that.
    digests: of its job (`JobKey.digests`).
    """

    rank: int
    incarnation: bytes
    leader: bytes
    digests: bytes

    def differs_in(self, key: JobKey) -> list[str]:
        """The parts of the job in which the host differs from this one."""
        cut = [slice(place * DIGEST_BYTES, (place + 1) * DIGEST_BYTES) for place in range(len(PARTS))]
        return [name for name, part in zip(PARTS, cut, strict=True) if self.digests[part] != key.digests[part]]


class Seal:
    """Authenticates the messages of one proven connection: each carries an HMAC over its number and its bytes.

    A message that was changed, left out, repeated or moved does not open, nor does one of another connection.
    """

    def __init__(self, outgoing: bytes, incoming: bytes) -> None:
        self._outgoing, self._incoming = outgoing, incoming
        self._sent = self._opened = 0

    def close(self, body: bytes) -> bytes:
        """The message as it travels."""
        self._sent += 1
        return _seal(self._outgoing, self._sent, body) + body

    def open(self, line: bytes) -> bytes:
        """The message that has travelled. Raises ValueError."""
        self._opened += 1
        mac, body = line[: 2 * _SEAL_BYTES], line[2 * _SEAL_BYTES :]
        if not hmac.compare_digest(mac, _seal(self._incoming, self._opened, body)):
            raise ValueError("not sealed by the other side")
        return body


def _seal(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + body, "sha256")[:_SEAL_BYTES].hex().encode()


class Handshake:
    """One connection's proof, on either side: what to send, and what the other side has sent."""

    def __init__(self, key: JobKey) -> None:
        self.key = key
        self._own = os.urandom(_NONCE_BYTES)
        self._theirs = b""
        self._claim = b""

    def preface(self) -> bytes:
        """The first bytes of both sides."""
        return _NAME + b"%02d\n" % VERSION + self._own

    def read_preface(self, data: bytes) -> None:
        """Takes the other side's. Raises NotOurs."""
        head, self._theirs = data[:-_NONCE_BYTES], data[-_NONCE_BYTES:]
        if head == _NAME + b"%02d\n" % VERSION:
            return
        version = head[len(_NAME) : -1]
        raise NotOurs(int(version) if head.startswith(_NAME) and version.isdigit() else 0)

    # --- a member's side ---

    def claim(self, rank: int, incarnation: bytes, leader: bytes = b"") -> bytes:
        """The claim, once the preface has been read; see `Claim`."""
        body = _CLAIM.pack(rank, incarnation, leader, self.key.digests)
        self._claim = body + self._mac(b"claim", self._theirs, self._own, body)
        return self._claim

    def read_answer(self, data: bytes) -> bytes:
        """Host 0's incarnation. Raises Unproven: host 0 does not know the key, or says that this host does not."""
        body, mac = data[: _ANSWER.size], data[_ANSWER.size :]
        status, incarnation = _ANSWER.unpack(body)
        if status != _WELCOME or not hmac.compare_digest(mac, self._mac(b"answer", self._theirs, self._own, body)):
            raise Unproven
        return bytes(incarnation)

    def member_seal(self) -> Seal:
        """For a member's messages, once the answer has been read."""
        return Seal(self._direction(b"to 0", self._theirs, self._own), self._direction(b"from 0", self._theirs, self._own))

    # --- host 0's side ---

    def read_claim(self, data: bytes) -> Claim:
        """Who the other side is. Raises Unproven."""
        body, mac = data[: _CLAIM.size], data[_CLAIM.size :]
        rank, incarnation, leader, digests = _CLAIM.unpack(body)
        if not hmac.compare_digest(mac, self._mac(b"claim", self._own, self._theirs, body)):
            raise Unproven(rank)
        self._claim = data
        return Claim(rank, incarnation, leader, digests)

    def answer(self, incarnation: bytes) -> bytes:
        """The answer to a claim that was read."""
        body = _ANSWER.pack(_WELCOME, incarnation)
        return body + self._mac(b"answer", self._own, self._theirs, body)

    def leader_seal(self) -> Seal:
        """For host 0's messages, once the claim has been read."""
        return Seal(self._direction(b"from 0", self._own, self._theirs), self._direction(b"to 0", self._own, self._theirs))

    # --- both ---

    def _mac(self, label: bytes, leaders: bytes, members: bytes, body: bytes) -> bytes:
        claimed = self._claim if label == b"answer" else b""
        return hmac.digest(self.key.secret, b"|".join((label, b"%d" % VERSION, leaders + members, claimed + body)), "sha256")

    def _direction(self, label: bytes, leaders: bytes, members: bytes) -> bytes:
        return hmac.digest(self.key.secret, b"|".join((label, b"%d" % VERSION, leaders + members, self._claim)), "sha256")


def refusal() -> bytes:
    """Host 0's answer to a claim without proof; it proves nothing either."""
    return _ANSWER.pack(_UNPROVEN, bytes(INCARNATION_BYTES)) + bytes(_MAC_BYTES)
