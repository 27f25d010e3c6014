"""How long a step takes when its gradients are exchanged in other buckets, and the buckets that are best.

A step is its computation, in which gradients become ready one after the other, and an exchange that overlaps with it.
Buckets that are too large begin late, small ones pay for their number. All times in seconds, all sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

MIB = 1 << 20
SIZES = tuple(int(size * MIB) for size in (0.25, 0.5, 1, 2, 4, 8, 16, 25))
SMALL = 64 << 10  # a message up to which few steps matter more than few bytes
LEAST_GAIN = 1.03  # a step must become so much faster to be worth a change
_FURTHEST = 8.0  # what was measured of a link in a moment is not further from what it does for long
_NEAR = 1.01  # of plans this close the one with larger buckets is taken


@dataclass(frozen=True)
class Cost:
    """How long a message takes: `latency` and `per_byte` times its size.

    each: what it costs to send the same bytes in one more message, where others are on their way: of the latency what they
        have not in common, and what the link does not hide.
    least: until the next message can go the same way, however small this one is.
    """

    latency: float
    per_byte: float
    each: float
    least: float = 0.0

    def seconds(self, size: int) -> float:
        """For a message of `size` bytes, alone."""
        return self.latency + self.per_byte * size

    def among_others(self, size: int) -> float:
        """Until the next message can go the same way."""
        return max(self.least, self.each + self.per_byte * size)


@dataclass(frozen=True)
class Batch:
    """Messages that began together, and the seconds until all were over."""

    count: int
    size: int
    seconds: float


def fitted(one: Batch, small: Batch, many: Batch, few: Batch | None) -> Cost:
    """The cost with which messages take as long as was measured.

    Args:
        one: a single small message.
        small: several of them.
        many, few: as many bytes in large messages, and in fewer and larger ones: whether their number costs anything is seen
            from both alone, since a slow link hides what small messages cost. Without `few` it is taken to do so.
    """
    each, whole = 0.0, many
    if few is not None:
        each, whole = max(0.0, (many.seconds - few.seconds) / (many.count - few.count)), few
    sent = whole.count * whole.size
    per_byte = max(1e-12, (whole.seconds - one.seconds - (whole.count - 1) * each) / (sent - one.size))
    latency = max(0.0, one.seconds - per_byte * one.size)
    least = max(0.0, (small.seconds - one.seconds) / (small.count - one.count))
    return Cost(latency, per_byte, each, least)


@dataclass(frozen=True)
class Gradient:
    """When a gradient is ready, from when the first of the step is, and its size."""

    ready: float
    size: int


@dataclass(frozen=True)
class Timeline:
    """The timeline of steps: medians.

    gradients: in the order in which they become ready.
    rest: from the end of an exchange to the first gradient of the next step.
    waited: from the last gradient to the end of the exchange.
    """

    gradients: tuple[Gradient, ...]
    rest: float
    waited: float

    @property
    def step(self) -> float:
        """A whole step."""
        return self.rest + (self.gradients[-1].ready if self.gradients else 0.0) + self.waited

    @property
    def size(self) -> int:
        """All gradients."""
        return sum(gradient.size for gradient in self.gradients)


@dataclass(frozen=True)
class BucketPlan:
    """How gradients are to be exchanged.

    algorithm: a name of `costs`, for messages that are not small.
    small: whether small messages go directly.
    bucket: a bucket is closed when it has so many bytes.
    predicted: the step of DDP's own plan over that of this one.
    """

    algorithm: str
    small: bool
    bucket: int
    predicted: float


def buckets(gradients: Sequence[Gradient], sizes: Sequence[int]) -> list[Gradient]:
    """The buckets that DDP makes of gradients: one is closed as soon as it has reached its size.

    Args:
        sizes: of the first buckets; the last one holds for all others.
    """
    made: list[Gradient] = []
    held = 0
    for gradient in gradients:
        held += gradient.size
        if held >= sizes[min(len(made), len(sizes) - 1)]:
            made.append(Gradient(gradient.ready, held))
            held = 0
    if held:
        made.append(Gradient(gradients[-1].ready, held))
    return made


def pieces(size: int, limit: int) -> int:
    """Messages of a bucket of ours: it may be as large as its largest gradient, which whole would go stage by stage."""
    return max(1, round(size / limit))


def cut(made: Sequence[Gradient], limit: int) -> list[Gradient]:
    """The messages of buckets."""
    messages: list[Gradient] = []
    for bucket in made:
        count = pieces(bucket.size, limit)
        messages += [Gradient(bucket.ready, bucket.size // count)] * count
    return messages


def step_seconds(timeline: Timeline, made: Sequence[Gradient], cost: Cost, direct: Cost | None = None) -> float:
    """How long a step takes when one message follows the other.

    Args:
        made: messages, in order.
        direct: of small messages, where they have a way of their own.
    """
    free = over = 0.0
    for bucket in made:
        way = direct if direct is not None and bucket.size <= SMALL else cost
        begins = max(free, bucket.ready)
        free = begins + way.among_others(bucket.size)
        over = max(over, begins + way.seconds(bucket.size))
    last = timeline.gradients[-1].ready if timeline.gradients else 0.0
    return timeline.rest + max(over, last)


def plan_seconds(
    timeline: Timeline, costs: Mapping[str, Cost], own: str, sizes: Sequence[int], plan: BucketPlan | None
) -> float:
    """How long a step takes by a plan; None: as DDP was made.

    Args:
        costs: of each way to exchange a message; `direct`, if there, is for small ones.
        own: the way that DDP goes itself.
        sizes: of DDP's own buckets, as for `buckets`.
    """
    if plan is None:
        return step_seconds(timeline, buckets(timeline.gradients, sizes), costs[own])
    made = buckets(timeline.gradients, (plan.bucket,))
    messages = made if plan.algorithm == own else cut(made, plan.bucket)
    return step_seconds(timeline, messages, costs[plan.algorithm], costs["direct"] if plan.small else None)


def calibrated(
    timeline: Timeline, costs: Mapping[str, Cost], own: str, sizes: Sequence[int], plan: BucketPlan | None = None
) -> dict[str, Cost]:
    """Costs whose times for a byte are changed in one proportion, so that steps by a plan take as long as they were seen to.

    Short measurements tell which way is faster, and by how much, better than how fast a link is that has seconds of work.

    Args:
        own, sizes: as for `plan_seconds`.
        plan: by which the steps were made; None: as DDP was made.
    """

    def scaled(by: float) -> dict[str, Cost]:
        return {name: replace(cost, per_byte=cost.per_byte * by) for name, cost in costs.items()}

    low, high = 1 / _FURTHEST, _FURTHEST
    for _ in range(30):
        middle = (low * high) ** 0.5
        if plan_seconds(timeline, scaled(middle), own, sizes, plan) < timeline.step:
            low = middle
        else:
            high = middle
    return scaled(high)


def best_plan(
    timeline: Timeline, costs: Mapping[str, Cost], own: str, sizes: Sequence[int], plan: BucketPlan | None = None
) -> BucketPlan:
    """The plan whose steps are shortest.

    Args:
        costs, own, sizes: as for `plan_seconds`.
        plan: by which steps are made today; None: as DDP was made.
    """
    direct = costs.get("direct")
    today = plan_seconds(timeline, costs, own, sizes, plan)
    found: list[tuple[float, BucketPlan]] = []
    for name, cost in costs.items():
        if name == "direct":
            continue
        small = direct is not None and name != own and direct.seconds(SMALL) < cost.seconds(SMALL)
        for size in SIZES:
            tried = BucketPlan(name, small, size, 1.0)
            seconds = plan_seconds(timeline, costs, own, sizes, tried)
            found.append((seconds, replace(tried, predicted=today / seconds if seconds > 0 else 1.0)))
    least = min(seconds for seconds, _ in found)
    near = [one for seconds, one in found if seconds <= least * _NEAR]
    return max(near, key=lambda one: (one.bucket, one.algorithm == own))


def what_next(
    timeline: Timeline,
    costs: Mapping[str, Cost],
    own: str,
    sizes: Sequence[int],
    plan: BucketPlan | None = None,
    always: bool = False,
) -> BucketPlan | None:
    """How to go on: by another plan, by the present one (the same object), or, with None, as DDP was made.

    Args:
        costs, own, sizes, plan: as for `best_plan`.
        always: whether gradients are to go by a plan whatever that gains.
    """
    best = best_plan(timeline, costs, own, sizes, plan)
    if plan is None:
        return best if always or best.predicted >= LEAST_GAIN else None
    today, ddp = (plan_seconds(timeline, costs, own, sizes, one) for one in (plan, None))
    if not always and ddp * LEAST_GAIN <= today and ddp * best.predicted <= today * LEAST_GAIN:
        return None
    return best if best.predicted >= LEAST_GAIN else plan
