"""The progress of comparing a mirror with its table: slice by slice, in rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """A table whose mirror is compared with it again and again, in rounds.

    A slice is a range of keys, compared at the low watermark that the mirror stated just then.

    Attributes:
        pipeline: the pipeline's name.
        table: the table's full name.
        after_key: JSON of the key up to which the round has come; None at its beginning.
        round_at_ns: the earliest low watermark of the round's slices; None before its first.
        records: the number of rows of the table in the round's slices.
        different: the number of rows that differed in the round.
        different_before: the same in the last whole round.
        equal_at_ns: the earliest low watermark of the last whole round in which nothing differed;
            None before there was one.
    """

    pipeline: str
    table: str
    after_key: str | None = None
    round_at_ns: int | None = None
    records: int = 0
    different: int = 0
    different_before: int = 0
    equal_at_ns: int | None = None

    @property
    def differs(self) -> bool:
        """Whether a row differed in this round or in the last whole one."""
        return bool(self.different or self.different_before)

    def after_slice(
        self, last_key: str | None, records: int, different: int, at_ns: int
    ) -> VerifiedTable:
        """Return it after one more slice; the table's last slice ends the round.

        Args:
            last_key: JSON of the key at which the slice ends; None for the table's end.
            records: the number of rows in it.
            different: the number of them that differ.
            at_ns: the low watermark at which it was compared.
        """
        round_at_ns = at_ns if self.round_at_ns is None else min(self.round_at_ns, at_ns)
        if last_key is not None:
            return replace(
                self,
                after_key=last_key,
                round_at_ns=round_at_ns,
                records=self.records + records,
                different=self.different + different,
            )
        differed = self.different + different
        return VerifiedTable(
            self.pipeline,
            self.table,
            different_before=differed,
            equal_at_ns=self.equal_at_ns if differed else round_at_ns,
        )

    def again(self) -> VerifiedTable:
        """Return it at the beginning of its round, which can't be continued."""
        return VerifiedTable(
            self.pipeline,
            self.table,
            different_before=max(self.different, self.different_before),
            equal_at_ns=self.equal_at_ns,
        )


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of the comparisons of a pipeline's mirrors.

    Attributes:
        equal_at_ns: each row of each mirror was found equal at this low watermark or a later one;
            None if that is not so.
        different: the tables whose mirrors differ.
    """

    equal_at_ns: int | None
    different: tuple[str, ...]


def proof(tables: Iterable[VerifiedTable], low_watermark_ns: int | None) -> Proof:
    """Return the result of the comparisons.

    A comparison at a later low watermark than the pipeline's does not count: the output was set
    back to an earlier one since.

    Args:
        tables: those that are compared.
        low_watermark_ns: the pipeline's; None before its first epoch.
    """
    listed = list(tables)
    different = tuple(sorted(table.table for table in listed if table.differs))
    times = [
        table.equal_at_ns
        for table in listed
        if table.equal_at_ns is not None and table.equal_at_ns <= (low_watermark_ns or 0)
    ]
    is_proved = bool(times) and len(times) == len(listed) and not different
    return Proof(min(times) if is_proved else None, different)
