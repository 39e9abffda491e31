"""A sandbox's life: its states, what leads from one to the next, what is to be done for that, and what is due when.

Nothing here acts, waits or knows what time it is. The actor tells what happens, and does what it is told.

1. Whoever asks for a state is told the next step towards it, and asks again when that is done. While a step is under
   way nobody is told another one.
2. What became of a step is what was found, whatever was asked for: it may have failed, or been left half way.
3. Only one of which nothing runs is brought up: there are never two on one disk.
4. One that is in use, or waited for by who would use it, is not put to sleep.
5. An engine that can freeze nothing stops what nobody uses: its files are kept, which is what sleep promises at least.
6. A deadline that was acted upon is over, or put off: nobody is woken by it again and again.
7. The end of its life comes whatever it does, and whoever uses it.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec
from msgspec.structs import replace

from atoll.supervisor.plans import Upkeep

ASKED_FOR = "it was asked for"
ATOLL = "atoll"  # who does what nobody asks for
PUT_OFF_SECONDS = 1.0  # until what failed is tried again


class State(Enum):
    """The first five last; the others are steps, each for as long as it takes."""

    ABSENT = auto()  # not made yet, or destroyed
    REMAINS = auto()  # destroyed, but not removed yet: the next try does that
    STOPPED = auto()
    RUNNING = auto()
    FROZEN = auto()
    STARTING = auto()
    FREEZING = auto()
    THAWING = auto()
    STOPPING = auto()
    REMOVING = auto()


class Event(Enum):
    # Somebody uses it, from the first moment of waiting for it to the last.
    USED = auto()
    LEFT = auto()
    # What it is asked to be.
    BE_UP = auto()  # awake or asleep
    BE_AWAKE = auto()
    BE_THAWED = auto()  # if it is up
    BE_FROZEN = auto()
    BE_STOPPED = auto()
    BE_ENDED = auto()  # without a word to anybody inside
    BE_GONE = auto()
    # What was found.
    RUNS = auto()
    STANDS_STILL = auto()
    ENDED = auto()  # nothing runs, and it is on record
    ENDED_FOR_GOOD = auto()  # nothing runs, and its removal is not finished
    GONE = auto()


class Effect(Enum):
    """An order to an actor. The state that comes with it lasts until it says what it found then."""

    MAKE = auto()
    START = auto()
    FREEZE = auto()
    THAW = auto()
    STOP = auto()  # those inside are told first
    END = auto()
    DESTROY = auto()  # what runs, and all that is kept
    REMOVE = auto()  # what is kept


S, E = State, Event
LIVES = (S.STOPPED, S.RUNNING, S.FROZEN)
AWAKE = (S.STARTING, S.RUNNING, S.FREEZING, S.THAWING)  # or about to be, or not asleep yet

STEPS: dict[Event, dict[State, tuple[State, Effect]]] = {
    E.BE_UP: {
        S.ABSENT: (S.STARTING, Effect.MAKE),
        S.REMAINS: (S.STARTING, Effect.MAKE),  # it is refused, with the reason
        S.STOPPED: (S.STARTING, Effect.START),
    },
    E.BE_AWAKE: {
        S.ABSENT: (S.STARTING, Effect.MAKE),
        S.REMAINS: (S.STARTING, Effect.MAKE),
        S.STOPPED: (S.STARTING, Effect.START),
        S.FROZEN: (S.THAWING, Effect.THAW),
    },
    E.BE_THAWED: {
        S.FROZEN: (S.THAWING, Effect.THAW),
    },
    E.BE_FROZEN: {
        S.RUNNING: (S.FREEZING, Effect.FREEZE),
    },
    E.BE_STOPPED: {
        S.RUNNING: (S.STOPPING, Effect.STOP),
        S.FROZEN: (S.THAWING, Effect.THAW),  # who stands still cannot be told
    },
    E.BE_ENDED: {
        S.RUNNING: (S.STOPPING, Effect.END),
        S.FROZEN: (S.STOPPING, Effect.END),
    },
    E.BE_GONE: {
        S.REMAINS: (S.REMOVING, Effect.REMOVE),
        S.STOPPED: (S.REMOVING, Effect.REMOVE),
        S.RUNNING: (S.REMOVING, Effect.DESTROY),
        S.FROZEN: (S.REMOVING, Effect.DESTROY),
    },
}

HAS_PROCESSES = (S.RUNNING, S.FROZEN, S.FREEZING, S.THAWING, S.STOPPING)

FOUND: dict[Event, dict[State, State]] = {
    # STOPPED: by who adopts what an earlier server left.
    E.RUNS: dict.fromkeys((S.STOPPED, S.STARTING, *HAS_PROCESSES), S.RUNNING),
    E.STANDS_STILL: dict.fromkeys((S.STOPPED, *HAS_PROCESSES), S.FROZEN),
    # ABSENT: its record was lost, or its disk was set aside, and it is back.
    E.ENDED: dict.fromkeys(S, S.STOPPED),
    E.ENDED_FOR_GOOD: dict.fromkeys(S, S.REMAINS),
    E.GONE: dict.fromkeys(S, S.ABSENT),
}


class Due(msgspec.Struct, frozen=True):
    """The purpose of a deadline: an event to be told, with its cause and by whom."""

    event: Event
    cause: str
    by: str


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """The life of one sandbox, at one moment. All times are by a clock that nobody sets (`store/moments.py`)."""

    state: State = State.ABSENT
    upkeep: Upkeep = Upkeep()
    uses: int = 0  # under way, or waiting
    idle_since: float = 0.0  # if it runs, and nobody uses it
    asleep_since: float = 0.0  # if it is frozen
    told_to_sleep_by: str | None = None
    made_at: float = 0.0  # if its life has an end
    not_before: float = 0.0  # what is due is put off until then
    can_freeze: bool = True  # its engine

    @property
    def deadline(self) -> float | None:
        """When something is due, if nothing happens before."""
        due_at = min(
            (at for at in (self._end_at, None if self.uses else self._due_at()) if at is not None), default=None
        )
        return None if due_at is None else max(due_at, self.not_before)

    @property
    def has_end(self) -> bool:
        """Whether it is there, and not for ever."""
        return self._end_at is not None

    @property
    def _end_at(self) -> float | None:
        has_end = self.upkeep.ttl is not None and self.state in LIVES
        return self.made_at + (self.upkeep.ttl or 0.0) if has_end else None

    def _due_at(self) -> float | None:
        if self.state is State.FROZEN and self.upkeep.stop_after is not None:
            return self.asleep_since + self.upkeep.stop_after
        if self.state is not State.RUNNING:
            return None
        if self.told_to_sleep_by is not None:
            return self.idle_since
        return None if self.upkeep.keep_alive else self.idle_since + self.upkeep.sleep_after

    def due(self, now: float) -> Due | None:
        """The deadline that is there, if one is."""
        deadline = self.deadline
        if deadline is None or now < deadline:
            return None
        if self._end_at is not None and now >= self._end_at:
            return Due(Event.BE_GONE, f"its life of {self.upkeep.ttl:g} seconds was over", ATOLL)
        if self.state is State.FROZEN:
            return Due(Event.BE_STOPPED, f"it slept for {self.upkeep.stop_after:g} seconds", ATOLL)
        asleep, why = (
            (Event.BE_FROZEN, "") if self.can_freeze else (Event.BE_STOPPED, ", and its engine cannot freeze it")
        )
        if self.told_to_sleep_by is not None:
            return Due(asleep, f"{ASKED_FOR}{why}", self.told_to_sleep_by)
        return Due(asleep, f"nobody used it for {self.upkeep.sleep_after:g} seconds{why}", ATOLL)

    def treated(self, upkeep: Upkeep, made_at: float = 0.0) -> Lifecycle:
        return replace(self, upkeep=upkeep, made_at=made_at)

    def told_to_sleep(self, by: str) -> Lifecycle:
        """As soon as nobody uses it; who uses it anew keeps it awake."""
        return replace(self, told_to_sleep_by=by) if self.state in AWAKE else self

    def put_off(self, now: float) -> Lifecycle:
        """Put off what is due, as it could not be done."""
        return replace(self, not_before=now + PUT_OFF_SECONDS)


def step(life: Lifecycle, event: Event, now: float) -> tuple[Lifecycle, Effect | None]:
    """The next of a life after this event, and what is to be done for that. `now` is when the event was."""
    if event is Event.USED:
        return replace(life, uses=life.uses + 1, told_to_sleep_by=None), None
    if event is Event.LEFT:
        return replace(life, uses=life.uses - 1, idle_since=now), None
    if event in FOUND:
        return _entering(life, FOUND[event].get(life.state, life.state), now), None
    if event is Event.BE_FROZEN and (life.uses or not life.can_freeze):
        return life, None
    state, effect = STEPS[event].get(life.state, (life.state, None))
    return _entering(life, state, now), effect


def _entering(life: Lifecycle, state: State, now: float) -> Lifecycle:
    if state is life.state:
        return life
    if state is State.RUNNING and life.state not in (State.FREEZING, State.STOPPING):  # those failed
        return replace(life, state=state, idle_since=now)
    if state is State.FROZEN and life.state in (State.STOPPED, State.RUNNING, State.FREEZING):
        return replace(life, state=state, asleep_since=now, told_to_sleep_by=None)
    return replace(life, state=state, told_to_sleep_by=life.told_to_sleep_by if state in AWAKE else None)
