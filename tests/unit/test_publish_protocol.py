"""Station 12, the verdict of steps 1 and 2: each way in which Kafka and Postgres may disagree (DESIGN 6).

The names A1 to A8 are those of the histories that an explicit-state search found before these rules stood.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from session_custody.core.errors import RejectReason
from session_custody.ports import CursorCheck, OutboxDeadLetter
from session_custody.publish.protocol import (
    STORE_WENT_BACK,
    Damaged,
    Entry,
    FailClosed,
    Fault,
    NotOwner,
    Ours,
    Proceed,
    Sight,
    StartAgain,
    Verdict,
    dense,
    judge,
    look,
)
from session_custody.wire import Claim, Cursor

ME, OTHER, SETTLED = uuid4(), uuid4(), uuid4()
STORE, OTHER_STORE = uuid4(), uuid4()
NONCE, EARLIER = uuid4(), uuid4()
OURS = Ours(frozenset({ME}), epoch=5, store_id=STORE)
H7, H8 = b"7" * 32, b"8" * 32

MINE = Claim(ME, 5, NONCE, STORE)
AT_7 = Cursor(7, H7, STORE, 4, OTHER)
CHECK = CursorCheck(
    owner=ME, epoch=5, published_seq=7, published_hash=H7, next_seq=9, went_back=False, row_hash=H7,
    adopted_seq=None, adopted_hash=None,
)  # fmt: skip


def seen(*records: Claim | Cursor | Damaged, ours: Ours = OURS, by_epoch: bool = False) -> Sight:
    return look(
        [Entry(offset, record) for offset, record in enumerate(records)], NONCE, ours, by_epoch=by_epoch
    )


def verdict(*records: Claim | Cursor | Damaged, check: CursorCheck = CHECK, ours: Ours = OURS) -> Verdict:
    return judge(seen(*records, ours=ours), ours, check)


def test_the_cursor_and_its_row_agree_and_publication_goes_on_behind_it() -> None:
    assert verdict(AT_7, MINE) == Proceed(7, 0)


def test_a_cursor_above_the_floor_is_no_fault() -> None:
    """The worker died between the Kafka commit and the floor."""
    assert verdict(AT_7, MINE, check=replace(CHECK, published_seq=3)) == Proceed(7, 0)


def test_a_fresh_lane_begins_at_the_first_row() -> None:
    fresh = replace(CHECK, published_seq=0, published_hash=None, row_hash=None)
    assert verdict(MINE, check=fresh) == Proceed(0, 0)
    assert verdict(Cursor(0, b"", STORE, 1, OTHER), MINE, check=fresh) == Proceed(0, 0)


def test_none_is_never_zero_once_the_floor_is_above_zero() -> None:
    assert verdict(MINE, check=replace(CHECK, row_hash=None)) == FailClosed(Fault.CURSOR_MISSING)


def test_a_cursor_below_the_floor_fails_closed() -> None:
    check = replace(CHECK, published_seq=8, published_hash=H8)
    assert verdict(AT_7, MINE, check=check) == FailClosed(Fault.CURSOR_BELOW_FLOOR)


def test_no_row_or_another_row_at_the_cursor_means_the_store_went_back() -> None:
    """A6: a row written again has something random under its hash and never looks the same."""
    low = replace(CHECK, published_seq=3)
    assert verdict(AT_7, MINE, check=replace(low, row_hash=None)) == FailClosed(Fault.ROW_MISSING)
    assert verdict(AT_7, MINE, check=replace(low, row_hash=H8)) == FailClosed(Fault.ROW_DIFFERS)


def test_a1_a_zombie_that_compares_late_closes_without_an_alarm() -> None:
    """It read cursor 7, its successor published 8 and wrote the floor, now it compares."""
    check = replace(CHECK, owner=OTHER, published_seq=8, published_hash=H8, row_hash=H7)
    assert verdict(AT_7, MINE, check=check) == NotOwner()
    assert verdict(AT_7, MINE, check=replace(check, owner=None)) == NotOwner()


def test_a2_a_higher_epoch_of_another_owner_is_asked_of_postgres_again() -> None:
    """Not owner by then: close. Still owner: Postgres has lost that other one."""
    higher = Claim(OTHER, 6, EARLIER, STORE)
    assert verdict(AT_7, MINE, higher, check=replace(CHECK, owner=OTHER, epoch=6)) == NotOwner()
    assert verdict(AT_7, MINE, higher) == FailClosed(Fault.RIVAL)


def test_a3_an_owner_that_owns_again_after_a_loss_sees_the_cursor_of_the_lost_one() -> None:
    """Postgres lost the acquire of a successor that had published: its cursor has the higher epoch."""
    lost = Cursor(8, H8, STORE, 6, OTHER)
    assert verdict(AT_7, Claim(OTHER, 6, EARLIER, STORE), lost, MINE) == FailClosed(Fault.RIVAL)
    assert verdict(lost, MINE) == FailClosed(Fault.RIVAL), "its claim may be compacted away"


def test_a4_the_same_epoch_of_another_owner_counts_as_well() -> None:
    """After a lost acquire the next owner gets the same number."""
    assert verdict(AT_7, Claim(OTHER, 5, EARLIER, STORE), MINE) == FailClosed(Fault.RIVAL)
    assert verdict(AT_7, Claim(OTHER, 4, EARLIER, STORE), MINE) == Proceed(7, 0)


def test_a5_what_was_noticed_once_is_not_forgotten() -> None:
    assert verdict(AT_7, MINE, check=replace(CHECK, went_back=True)) == FailClosed(Fault.WENT_BACK)
    assert {Fault.RIVAL, Fault.ROW_DIFFERS, Fault.ROW_MISSING} <= STORE_WENT_BACK, "noticing is written down"


def test_a7_an_earlier_claim_of_the_same_incarnation_is_not_this_one() -> None:
    """A commit's answer was lost, it claimed again: before the second claim may stand an old cursor."""
    assert verdict(AT_7, replace(MINE, nonce=EARLIER)) == StartAgain()
    assert verdict(replace(MINE, nonce=EARLIER), AT_7, MINE) == Proceed(7, 0)


def test_a8_a_claim_that_never_shows_leads_back_to_the_beginning() -> None:
    assert verdict() == StartAgain()
    assert verdict(AT_7) == StartAgain()
    assert verdict(AT_7, check=replace(CHECK, owner=OTHER)) == NotOwner()


def test_settling_changes_the_owner_in_place_and_is_no_rival() -> None:
    settled = Ours(frozenset({ME, SETTLED}), epoch=6, store_id=STORE)
    check = replace(CHECK, owner=SETTLED, epoch=6)
    by_me = Cursor(7, H7, STORE, 5, ME)
    assert verdict(by_me, Claim(SETTLED, 6, NONCE, STORE), check=check, ours=settled) == Proceed(7, 0)


def test_the_topic_of_another_database_is_told_apart_from_a_loss() -> None:
    theirs = replace(AT_7, store_id=OTHER_STORE)
    assert verdict(theirs, MINE) == FailClosed(Fault.OTHER_STORE)
    assert verdict(Claim(OTHER, 9, EARLIER, OTHER_STORE), MINE) == FailClosed(Fault.OTHER_STORE)


def test_a_record_that_cannot_be_read_fails_closed() -> None:
    assert verdict(AT_7, Damaged("the value's version is not 1"), MINE) == FailClosed(Fault.DAMAGED)


# ------------------------------------------------------------------ an operator's word


def test_an_adopted_cursor_is_accepted_and_the_floor_says_where_to_go_on() -> None:
    """Postgres lost rows 6 and 7 of which Kafka shows the last: adopted as it is, next_seq lifted to 8."""
    plain = replace(CHECK, row_hash=None, adopted_seq=7, adopted_hash=H7)
    assert verdict(AT_7, MINE, check=plain) == Proceed(7, skipped_to=7)
    again_from_4 = replace(plain, published_seq=3, published_hash=b"3" * 32)
    assert verdict(AT_7, MINE, check=again_from_4) == Proceed(3, skipped_to=7)


def test_an_adopted_cursor_is_accepted_before_old_rivals_count() -> None:
    """adopt-floor lifts the epoch above what Kafka shows, but the living owner began with the old one."""
    rival = Cursor(7, H7, STORE, 6, OTHER)
    check = replace(CHECK, adopted_seq=7, adopted_hash=H7, row_hash=None)
    assert verdict(rival, MINE, check=check) == Proceed(7, skipped_to=7)
    assert verdict(rival, check=check) == StartAgain(), "not before the own claim has shown"


def test_only_the_adopted_cursor_itself_is_accepted() -> None:
    check = replace(CHECK, row_hash=None, adopted_seq=7, adopted_hash=H8)
    assert verdict(AT_7, MINE, check=check) == FailClosed(Fault.ROW_MISSING)
    passed = replace(CHECK, published_seq=9, adopted_seq=7, adopted_hash=H7)
    assert verdict(AT_7, MINE, check=passed) == FailClosed(Fault.CURSOR_BELOW_FLOOR), "it has come back"


def test_a_lost_cursor_topic_is_adopted_as_zero() -> None:
    check = replace(CHECK, row_hash=None, adopted_seq=0, adopted_hash=None)
    assert verdict(MINE, check=check) == Proceed(7, skipped_to=0)
    assert verdict(MINE, check=replace(check, adopted_seq=None)) == FailClosed(Fault.CURSOR_MISSING)


def test_adopting_does_not_outweigh_a_mark_that_stands() -> None:
    check = replace(CHECK, went_back=True, adopted_seq=7, adopted_hash=H7)
    assert verdict(AT_7, MINE, check=check) == FailClosed(Fault.WENT_BACK)


# ------------------------------------------------------------------ what is read


def test_the_last_cursor_counts_and_its_offset_is_kept() -> None:
    sight = seen(AT_7, MINE, Cursor(8, H8, STORE, 5, ME))
    assert (sight.cursor_seq, sight.cursor_offset, sight.claim_seen) == (8, 2, True)


def test_without_transactions_a_zombies_late_cursor_does_not_count() -> None:
    late = Cursor(6, b"6" * 32, STORE, 3, OTHER)
    records = (Cursor(8, H8, STORE, 4, OTHER), late, MINE)
    assert seen(*records, by_epoch=True).cursor_seq == 8
    assert seen(*records).cursor_seq == 6


EPOCHS = st.integers(1, 9)
RECORDS = st.one_of(
    st.builds(Claim, st.sampled_from([ME, OTHER]), EPOCHS, st.sampled_from([NONCE, EARLIER]), st.just(STORE)),
    st.builds(Cursor, st.integers(1, 9), st.just(H7), st.just(STORE), EPOCHS, st.sampled_from([ME, OTHER])),
)


@given(st.lists(RECORDS, max_size=6), st.integers(0, 9), st.sampled_from([ME, OTHER, None]), st.booleans())
def test_publication_never_goes_on_without_owner_claim_and_matching_row(
    records: list[Claim | Cursor], floor: int, owner: UUID | None, went_back: bool
) -> None:
    check = replace(CHECK, owner=owner, published_seq=floor, went_back=went_back)
    said = verdict(*records, check=check)
    if not isinstance(said, Proceed):
        return
    assert owner == ME
    assert not went_back
    assert any(isinstance(record, Claim) and record.nonce == NONCE for record in records)
    assert all(record.owner == ME or record.epoch < OURS.epoch for record in records)
    cursors = [record for record in records if isinstance(record, Cursor)]
    assert said.after_seq == (cursors[-1].lane_seq if cursors else 0)
    assert said.after_seq >= floor


# ------------------------------------------------------------------ gaps


def row(lane_seq: int) -> OutboxDeadLetter:
    now = datetime(2026, 8, 14, tzinfo=UTC)
    return OutboxDeadLetter(
        lane_seq, uuid4(), RejectReason.UNDECODABLE, "", "t", 0, 1, None, None, (), now, None, None, H7
    )


@pytest.mark.parametrize(
    ("numbers", "after", "skipped_to", "published"),
    [
        ([1, 2, 3], 0, 0, [1, 2, 3]),
        ([2, 3], 0, 0, []),
        ([5, 6, 8, 9], 4, 0, [5, 6]),
        ([11, 12], 7, 10, [11, 12]),
        ([6, 7, 11], 5, 10, [6, 7, 11]),
        ([6, 7, 12], 5, 10, [6, 7]),
        ([9, 11], 7, 10, [9, 11]),
        ([], 7, 10, []),
    ],
)
def test_a_gap_is_passed_only_where_numbers_were_given_up(
    numbers: list[int], after: int, skipped_to: int, published: list[int]
) -> None:
    assert [found.lane_seq for found in dense([row(n) for n in numbers], after, skipped_to)] == published
