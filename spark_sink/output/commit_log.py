"""The commits of an output in files: numbered, each created once.

A commit holds the files of one epoch, or names those that are staged. The process that creates the
next number has published. Then the files get the names that readers see; any process that finds the
commit can repeat this, because it changes nothing. A process that takes the pipeline over creates a
commit without files. So the number that a former owner would create is taken, and its staged epoch
can't be published any more.

Old commits are removed in ascending order. A former owner that was frozen for so long that its
number is free again finds that the commit before it, its own, is gone.
"""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.small_files import SmallFiles
from slackwater.timestamp import datetime_to_rfc3339

# Readers ignore names that start so.
FOLDER: Final = "_commits"
# The commits that stay. One would do; the others show a person the last events.
COMMITS_KEPT: Final = 20
_NAME: Final = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file of an epoch, or on a disk the folder with all of its files.

    Attributes:
        name: which readers see.
        staged: the name under which it is staged; None if the commit has its content.
        content: in the commit; None if the file is staged.
    """

    name: str
    staged: str | None = None
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """An entry of the log.

    Attributes:
        number: counts from 0.
        owner: the process that created it, by a name of its own.
        low_watermark: the latest epoch's through this commit, in whole microseconds, UTC; None
            before the first. Of a chunk of an initial scan it is that of the epoch before.
        line: that epoch's in the watermark log, which may lack it; None before the first.
        named_by: when the watermark log has this low watermark, the files have had their names;
            None unless for an epoch.
        is_chunk: whether the files are those of a chunk of a scan. They have had their names when
            there is a later commit. The log does not tell: it may have the scan's low watermark.
        files: an epoch's, a chunk's, or one that replaces those of many epochs; none if a process
            took the pipeline over, or a chunk's files have got their names.
    """

    number: int
    owner: str
    low_watermark: datetime | None
    line: str | None = None
    named_by: datetime | None = None
    files: Sequence[CommittedFile] = ()
    is_chunk: bool = False

    @property
    def replaces_epochs(self) -> bool:
        """Whether the files replace those of many epochs, which stay until these are named."""
        return bool(self.files) and self.named_by is None and not self.is_chunk

    @property
    def name(self) -> str:
        """The file's name."""
        return commit_name(self.number)


def commit_name(number: int) -> str:
    """Return the name of a commit's file; names sort as the numbers do."""
    return f"{number:020d}.json"


def commit_number(name: str) -> int | None:
    """Return the number of a commit; None if the file is not one."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def commit_text(commit: Commit) -> str:
    """Return a commit's file."""
    fields = {
        "owner": commit.owner,
        "low_watermark": _time_text(commit.low_watermark),
        "line": commit.line,
        "named_by": _time_text(commit.named_by),
        "is_chunk": commit.is_chunk,
        "files": [_file_fields(file) for file in commit.files],
    }
    return json.dumps(fields)


def parse_commit(number: int, text: str) -> Commit:
    """Return the commit of a file."""
    fields = json.loads(text)
    return Commit(
        number,
        fields["owner"],
        _time(fields["low_watermark"]),
        fields["line"],
        _time(fields["named_by"]),
        tuple(_file(file) for file in fields["files"]),
        is_chunk=fields["is_chunk"],
    )


def numbers_to_remove(numbers: Iterable[int], last: int) -> list[int]:
    """Return the commits to remove, in the order in which they have to be removed."""
    return sorted(number for number in numbers if number <= last - COMMITS_KEPT)


class CommitLog:
    """The commits of one output, as one process adds them.

    Args:
        files: the folder of the commits.
        owner: the process, by a name that no other has.
    """

    def __init__(self, files: SmallFiles, owner: str) -> None:
        self._files = files
        self._owner = owner
        # Of this process: the last one's number and tag.
        self._last: tuple[int, str] | None = None
        # The answer to a request for the next commit was lost, or refused it.
        self._is_uncertain = False
        self._numbers: list[int] = []

    def last(self) -> Commit | None:
        """Return the last commit of all; None without one."""
        numbers = self._listed()
        while numbers:
            text = self._files.read(commit_name(numbers[-1]))
            if text is not None:
                return parse_commit(numbers[-1], text)
            # Its owner has gone on, and removed it since.
            numbers = self._listed()
        return None

    def take_over(
        self, last: Commit | None, low_watermark: datetime | None, line: str | None
    ) -> bool:
        """Add a commit without files, so that no former owner can add one.

        Args:
            last: the last one, whose files have their names; None without one.
            low_watermark, line: of the latest epoch; see Commit.

        Returns:
            False if another one was added meanwhile.
        """
        number = 0 if last is None else last.number + 1
        commit = Commit(number, self._owner, low_watermark, line)
        created = self._files.create(commit.name, commit_text(commit), is_durable=True)
        if created is None:
            return False
        numbers = self._listed()
        if not numbers or numbers[-1] != number:
            # This process was frozen, and others have gone on. Its commit stays: a number that is
            # free again, with those before it still there, could be taken by a former owner.
            return False
        self._last, self._numbers = (number, created), numbers
        return True

    def add(
        self,
        low_watermark: datetime | None,
        line: str | None,
        named_by: datetime | None,
        files: Sequence[CommittedFile],
        *,
        is_chunk: bool = False,
    ) -> Commit:
        """Publish files; they have no names yet.

        Args:
            low_watermark, line, named_by, files, is_chunk: see Commit.

        Raises:
            PublishError: another process has taken the pipeline over; nothing is published.
        """
        assert self._last is not None  # noqa: S101 - take_over() comes first
        number = self._last[0] + 1
        commit = Commit(number, self._owner, low_watermark, line, named_by, files, is_chunk)
        self._is_uncertain = True
        created = self._files.create(commit.name, commit_text(commit), is_durable=True)
        if created is None:
            raise taken_over_error()
        self._keep(commit, created)
        return commit

    def adopt(self) -> Commit | None:
        """Return a commit that this process added without an answer; None if there is none.

        Raises:
            PublishError: the commit before it, this process's own, is gone: others have gone on.
        """
        assert self._last is not None  # noqa: S101 - take_over() comes first
        if not self._is_uncertain:
            return None
        number = self._last[0] + 1
        text = self._files.read(commit_name(number))
        commit = None if text is None else parse_commit(number, text)
        if commit is None or commit.owner != self._owner:
            return None
        self._keep(commit, self._files.tag(commit.name))
        return commit

    def _keep(self, commit: Commit, created: str | None) -> None:
        """Make a commit this process's last one, if the one before is there."""
        assert self._last is not None  # noqa: S101 - take_over() comes first
        number, last_tag = self._last
        if created is None or self._files.tag(commit_name(number)) != last_tag:
            # This process was frozen, and the number was free again.
            self._files.remove([commit.name])
            raise taken_over_error()
        self._last = (commit.number, created)
        self._numbers.append(commit.number)
        self._is_uncertain = False

    def remove_old(self) -> None:
        """Remove commits that are not needed any more, the oldest first."""
        assert self._last is not None  # noqa: S101 - take_over() comes first
        for number in numbers_to_remove(self._numbers, self._last[0]):
            self._files.remove([commit_name(number)])
            self._numbers.remove(number)

    def _listed(self) -> list[int]:
        numbers = map(commit_number, self._files.names())
        return sorted(number for number in numbers if number is not None)


def taken_over_error() -> PublishError:
    """Return the error of a former owner, of which nothing is published any more."""
    return PublishError("another process has taken the pipeline over, and writes to its output.")


def _time_text(time: datetime | None) -> str | None:
    return None if time is None else datetime_to_rfc3339(time)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _file_fields(file: CommittedFile) -> dict[str, Any]:
    if file.content is None:
        return {"name": file.name, "staged": file.staged}
    return {"name": file.name, "content": base64.b64encode(file.content).decode()}


def _file(fields: dict[str, Any]) -> CommittedFile:
    content = fields.get("content")
    decoded = None if content is None else base64.b64decode(content)
    return CommittedFile(fields["name"], fields.get("staged"), decoded)
