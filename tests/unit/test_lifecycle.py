"""A sandbox's life as a table of every state and event, and as schedules that nobody thought of."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from atoll.supervisor.lifecycle import (
    ASKED_FOR,
    ATOLL,
    PUT_OFF_SECONDS,
    Due,
    Effect,
    Event,
    Lifecycle,
    State,
    step,
)
from atoll.supervisor.plans import Upkeep

# For each event what becomes of every state, and `: effect` if that is to be done; a dot is what stays as it is.
COLUMNS = "absent     remains    stopped    running    frozen     starting freezing thawing stopping removing"
TABLE = """
USED            .          .          .          .          .          .        .        .       .        .
LEFT            .          .          .          .          .          .        .        .       .        .
BE_UP           +MAKE      +MAKE      +START     .          .          .        .        .       .        .
BE_AWAKE        +MAKE      +MAKE      +START     .          +THAW      .        .        .       .        .
BE_THAWED       .          .          .          .          +THAW      .        .        .       .        .
BE_FROZEN       .          .          .          +FREEZE    .          .        .        .       .        .
BE_STOPPED      .          .          .          +STOP      +THAW      .        .        .       .        .
BE_ENDED        .          .          .          +END       +END       .        .        .       .        .
BE_GONE         .          +REMOVE    +REMOVE    +DESTROY   +DESTROY   .        .        .       .        .
RUNS            .          .          running    .          running    running  running  running running  .
STANDS_STILL    .          .          frozen     frozen     .          .        frozen   frozen  frozen   .
ENDED           stopped    stopped    .          stopped    stopped    stopped  stopped  stopped stopped  stopped
ENDED_FOR_GOOD  remains    .          remains    remains    remains    remains  remains  remains remains  remains
GONE            .          absent     absent     absent     absent     absent   absent   absent  absent   absent
"""
WHILE = {  # the state while an effect is under way
    Effect.MAKE: State.STARTING,
    Effect.START: State.STARTING,
    Effect.FREEZE: State.FREEZING,
    Effect.THAW: State.THAWING,
    Effect.STOP: State.STOPPING,
    Effect.END: State.STOPPING,
    Effect.DESTROY: State.REMOVING,
    Effect.REMOVE: State.REMOVING,
}
STATES = [State[word.upper()] for word in COLUMNS.split()]
ROWS = {Event[words[0]]: words[1:] for line in TABLE.strip().splitlines() if (words := line.split())}


def test_the_table_has_every_state_and_every_event() -> None:
    assert set(STATES) == set(State)
    assert set(ROWS) == set(Event)


def test_what_becomes_of_each_state_by_each_event() -> None:
    for event, cells in ROWS.items():
        for state, cell in zip(STATES, cells, strict=True):
            life, effect = step(Lifecycle(state=state), event, 1.0)
            if cell.startswith("+"):
                assert effect is Effect[cell[1:]], (event, state)
                assert life.state is WHILE[effect], (event, state)
            else:
                assert effect is None, (event, state)
                assert life.state is (state if cell == "." else State[cell.upper()]), (event, state)


# Deadlines.

RUNNING = Lifecycle(state=State.RUNNING, upkeep=Upkeep(sleep_after=10.0, stop_after=100.0), idle_since=1000.0)


def frozen(life: Lifecycle, now: float) -> Lifecycle:
    for event in (Event.BE_FROZEN, Event.STANDS_STILL):
        life, _ = step(life, event, now)
    assert life.state is State.FROZEN
    return life


def test_one_that_nobody_uses_is_put_to_sleep_after_its_time_and_stopped_after_another() -> None:
    assert RUNNING.deadline == 1010.0
    assert RUNNING.due(1009.9) is None
    assert RUNNING.due(1010.0) == Due(Event.BE_FROZEN, "nobody used it for 10 seconds", ATOLL)
    life = frozen(RUNNING, 1010.5)
    assert life.deadline == 1110.5
    assert life.due(1110.5) == Due(Event.BE_STOPPED, "it slept for 100 seconds", ATOLL)


def test_one_that_is_kept_alive_or_never_to_be_stopped_has_no_deadline() -> None:
    assert RUNNING.treated(Upkeep(keep_alive=True)).deadline is None
    assert frozen(RUNNING.treated(Upkeep()), 1010.0).deadline is None


def test_every_use_puts_sleep_off_and_while_there_is_one_nothing_is_due() -> None:
    used, _ = step(RUNNING, Event.USED, 1005.0)
    twice, _ = step(used, Event.USED, 1006.0)
    assert used.deadline is None and twice.deadline is None
    once, _ = step(twice, Event.LEFT, 1050.0)
    assert once.deadline is None
    left, _ = step(once, Event.LEFT, 1060.0)
    assert left.deadline == 1070.0


def test_one_that_was_told_to_sleep_does_as_soon_as_nobody_uses_it() -> None:
    used, _ = step(RUNNING.treated(Upkeep(keep_alive=True)), Event.USED, 1005.0)
    told = used.told_to_sleep("me")
    assert told.deadline is None
    left, _ = step(told, Event.LEFT, 1006.0)
    assert left.due(1006.0) == Due(Event.BE_FROZEN, ASKED_FOR, "me")
    again, _ = step(left, Event.USED, 1006.0)
    assert step(again, Event.LEFT, 1007.0)[0].deadline is None  # who came since keeps it awake


def test_who_sleeps_already_is_not_told_to_sleep_once_more_when_it_wakes() -> None:
    life = frozen(RUNNING.told_to_sleep("me"), 1001.0).told_to_sleep("me")
    for event in (Event.BE_THAWED, Event.RUNS):
        life, _ = step(life, event, 1002.0)
    assert life.due(1003.0) is None


def test_one_whose_upkeep_is_changed_may_be_due_at_once() -> None:
    assert frozen(RUNNING, 1010.0).treated(Upkeep(stop_after=1.0)).due(1020.0) is not None


def test_the_end_of_a_life_comes_in_whatever_state_and_also_for_one_in_use() -> None:
    over = Due(Event.BE_GONE, "its life of 50 seconds was over", ATOLL)
    running = RUNNING.treated(Upkeep(ttl=50.0), made_at=970.0)
    used, _ = step(running, Event.USED, 1005.0)
    stopped, _ = step(running, Event.ENDED, 1005.0)
    for life in (used, stopped, frozen(running, 1005.0)):
        assert life.has_end
        assert life.deadline == 1020.0
        assert life.due(1019.9) is None
        assert life.due(1020.0) == over


def test_one_whose_life_ends_later_is_put_to_sleep_and_stopped_before() -> None:
    life = RUNNING.treated(Upkeep(sleep_after=10.0, stop_after=100.0, ttl=500.0), made_at=900.0)
    assert life.due(1010.0) == Due(Event.BE_FROZEN, "nobody used it for 10 seconds", ATOLL)
    assert frozen(life, 1010.0).due(1110.0) == Due(Event.BE_STOPPED, "it slept for 100 seconds", ATOLL)


def test_one_that_is_gone_or_has_only_remains_has_no_end_any_more() -> None:
    for event in (Event.GONE, Event.ENDED_FOR_GOOD):
        life, _ = step(RUNNING.treated(Upkeep(ttl=50.0), made_at=0.0), event, 1000.0)
        assert not life.has_end
        assert life.deadline is None


def test_the_end_of_a_life_that_could_not_be_brought_about_is_put_off() -> None:
    life = RUNNING.treated(Upkeep(ttl=1.0), made_at=0.0).put_off(1000.0)
    assert life.due(1000.5) is None
    assert life.due(1000.0 + PUT_OFF_SECONDS) is not None


def test_one_in_use_is_not_frozen_though_it_was_asked_for() -> None:
    used, _ = step(RUNNING, Event.USED, 1005.0)
    assert step(used, Event.BE_FROZEN, 1005.0) == (used, None)


def test_what_could_not_be_done_is_put_off_and_its_time_stays_what_it_was() -> None:
    life = RUNNING
    for event in (Event.BE_FROZEN, Event.RUNS):
        life, _ = step(life, event, 1010.0)
    assert life.idle_since == RUNNING.idle_since
    life = life.put_off(1012.0)
    assert life.due(1012.0) is None
    assert life.deadline == 1012.0 + PUT_OFF_SECONDS


def test_what_no_engine_can_freeze_is_stopped_instead() -> None:
    life = replace(RUNNING, can_freeze=False)
    assert life.due(1010.0) == Due(
        Event.BE_STOPPED, "nobody used it for 10 seconds, and its engine cannot freeze it", ATOLL
    )
    assert step(life, Event.BE_FROZEN, 1010.0) == (life, None)
    told = life.told_to_sleep("me").due(1001.0)
    assert told and told.event is Event.BE_STOPPED and told.by == "me"


def test_one_that_slept_before_this_server_goes_on_counting() -> None:
    asleep, _ = step(replace(RUNNING, state=State.STOPPED), Event.STANDS_STILL, 4950.0)
    assert asleep.deadline == 5050.0


# Schedules. A world in which steps take time, fail, are left half way, and in which sandboxes end by themselves.


@dataclass
class User:
    """One who waits for a sandbox, then holds it, until it leaves or the sandbox ends under its hands."""

    is_holding: bool = False


@dataclass
class World:
    """One sandbox, as its actor and its engine see it; changes come one after the other, as there is a lock."""

    life: Lifecycle = field(default_factory=lambda: Lifecycle(upkeep=Upkeep(sleep_after=3.0, stop_after=5.0)))
    now: float = 1000.0
    live: int = 0
    is_frozen: bool = False
    is_on_record: bool = False
    users: list[User] = field(default_factory=list)
    doing: Effect | None = None
    aim: Event | None = None
    is_for_deadline: bool = False

    def tell(self, event: Event) -> None:
        before = self.life
        self.life, effect = step(self.life, event, self.now)
        if self.doing:
            assert effect is None, "one step at a time"
        if effect:
            self.begin(effect, before)

    def begin(self, effect: Effect, before: Lifecycle) -> None:
        if effect in (Effect.MAKE, Effect.START):
            assert self.live == 0, "two on one disk"
            assert self.is_on_record is (effect is Effect.START)
        if effect is Effect.FREEZE:
            assert self.life.can_freeze
            assert not self.users, "in use, and put to sleep"
        if effect in (Effect.FREEZE, Effect.THAW, Effect.STOP, Effect.END, Effect.DESTROY):
            assert self.live == 1
            assert self.is_frozen is (before.state is State.FROZEN)
        if effect is Effect.STOP:
            assert not self.is_frozen, "nobody inside can be told"
        self.doing = effect

    # What may happen.

    def come(self) -> None:
        self.users.append(User())
        self.tell(Event.USED)

    def ask(self, event: Event) -> None:
        if not self.doing:
            self.aim, self.is_for_deadline = event, False
            self.tell(event)
            self.serve()

    def leave(self) -> None:
        if self.users:
            self.users.pop(0)
            self.tell(Event.LEFT)

    def finish(self, *, fails: bool = False, is_done: bool = True) -> None:
        """The step that is under way is over. One that fails may have been done all the same."""
        if not self.doing:
            return
        effect, self.doing = self.doing, None
        if is_done or not fails:
            self.do(effect)
        elif effect is Effect.DESTROY:  # it has ended all the same
            self.live, self.is_frozen = 0, False
        self.tell(self.found())
        if fails:
            if self.is_for_deadline:
                self.life = self.life.put_off(self.now)
            self.aim = None
        elif self.aim:
            self.tell(self.aim)
        self.serve()

    def do(self, effect: Effect) -> None:
        match effect:
            case Effect.MAKE | Effect.START:
                self.live, self.is_on_record = self.live + 1, True
            case Effect.FREEZE:
                self.is_frozen = True
            case Effect.THAW:
                self.is_frozen = False
            case Effect.STOP | Effect.END:
                self.live, self.is_frozen = 0, False
            case Effect.DESTROY | Effect.REMOVE:
                self.live, self.is_frozen, self.is_on_record = 0, False, False

    def found(self) -> Event:
        if self.live:
            return Event.STANDS_STILL if self.is_frozen else Event.RUNS
        return Event.ENDED if self.is_on_record else Event.GONE

    def serve(self) -> None:
        """Whoever has waited for the change that is over now asks for the next, or holds the sandbox."""
        if self.doing:
            return
        if not self.live:
            for user in self.users:
                user.is_holding = False
        self.aim = None
        if any(not user.is_holding for user in self.users) and self.is_on_record:
            self.aim, self.is_for_deadline = Event.BE_AWAKE, False
            self.tell(Event.BE_AWAKE)
            if self.doing:
                return
            for user in self.users:
                user.is_holding = True

    def end_by_itself(self) -> None:
        if self.live and not self.doing:
            self.live, self.is_frozen = 0, False
            self.tell(self.found())

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.act_on_deadline()

    def act_on_deadline(self) -> None:
        if not self.doing and (due := self.life.due(self.now)):
            self.aim, self.is_for_deadline = due.event, True
            self.tell(due.event)
            assert self.doing, "what is due leads to something"

    def check(self) -> None:
        assert self.live in (0, 1)
        assert self.life.uses == len(self.users)
        if not self.doing:
            assert (self.life.state in (State.RUNNING, State.FROZEN)) is bool(self.live)
            assert (self.life.state is State.FROZEN) is self.is_frozen
            assert (self.life.state is State.ABSENT) is not self.is_on_record or self.live
        if any(user.is_holding for user in self.users) and self.live:
            assert self.life.state not in (State.FROZEN, State.FREEZING), "in use, and asleep"
        if not self.is_on_record and self.doing is not Effect.MAKE:
            assert not self.live, "destroyed, and there"
        if self.doing or (self.users and not self.life.has_end):
            assert self.life.deadline is None


happenings = st.one_of(
    st.just(("come",)),
    st.just(("leave",)),
    st.just(("end_by_itself",)),
    st.tuples(st.just("ask"), st.sampled_from([event for event in Event if event.name.startswith("BE_")])),
    st.tuples(st.just("told_to_sleep")),
    st.tuples(st.just("finish"), st.booleans(), st.booleans()),
    st.tuples(st.just("pass_time"), st.floats(0.0, 8.0)),
    st.tuples(
        st.just("treat"),
        st.builds(
            Upkeep,
            sleep_after=st.sampled_from([0.0, 0.1, 3.0]),
            keep_alive=st.booleans(),
            stop_after=st.sampled_from([None, 0.0, 5.0]),
            ttl=st.sampled_from([None, None, 1.0, 20.0]),
        ),
    ),
)


def happen(world: World, what: str, *values: object) -> None:
    match what, values:
        case "ask", (Event() as event,):
            world.ask(event)
        case "finish", (bool() as fails, bool() as is_done):
            world.finish(fails=fails, is_done=is_done)
        case "pass_time", (float() as seconds,):
            world.pass_time(seconds)
        case "treat", (Upkeep() as upkeep,):
            world.life = world.life.treated(upkeep, world.now)
        case "told_to_sleep", ():
            world.life = world.life.told_to_sleep("me")
        case _:
            getattr(world, what)()


@settings(max_examples=500)
@given(st.lists(happenings, max_size=60), st.booleans())
def test_whatever_happens_in_whatever_order_the_rules_hold(
    schedule: list[tuple[str, object]], can_freeze: bool
) -> None:
    world = World()
    world.life = replace(world.life, can_freeze=can_freeze)
    for what, *values in schedule:
        happen(world, what, *values)
        world.check()


@settings(max_examples=300)
@given(st.lists(happenings, max_size=40), st.booleans(), st.booleans(), st.booleans())
def test_a_deadline_that_was_acted_upon_is_not_in_the_past_once_more(
    schedule: list[tuple[str, object]], fails: bool, is_done: bool, can_freeze: bool
) -> None:
    world = World()
    world.life = replace(world.life, can_freeze=can_freeze)
    for what, *values in schedule:
        happen(world, what, *values)
    while world.doing:
        world.finish()
    acted_upon = []
    while due := world.life.due(world.now):
        assert due.event not in acted_upon, "woken again and again"
        acted_upon.append(due.event)
        world.act_on_deadline()
        while world.doing:
            world.finish(fails=fails, is_done=is_done)


@settings(max_examples=300)
@given(st.lists(happenings, max_size=40), st.lists(happenings, max_size=40))
def test_what_was_destroyed_stays_so_until_somebody_makes_it_anew(
    before: list[tuple[str, object]], after: list[tuple[str, object]]
) -> None:
    world = World()
    for what, *values in before:
        happen(world, what, *values)
    while world.doing:
        world.finish()
    world.ask(Event.BE_GONE)
    while world.doing:
        world.finish()
    assert world.life.state is State.ABSENT
    for what, *values in after:
        if (what, *values) not in (("ask", Event.BE_UP), ("ask", Event.BE_AWAKE)):
            happen(world, what, *values)
            assert world.life.state is State.ABSENT
            assert not world.live and not world.doing and world.life.deadline is None
