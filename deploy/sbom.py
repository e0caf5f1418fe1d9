"""Completes the image's software bill of materials, and lists the licences of what is in it.

`python sbom.py PYTHON FOLDER IVY` reads what cyclonedx-py says of the Python packages, adds the
jars below the folder, and writes FOLDER/sbom.cdx.json and FOLDER/licenses.txt. What a jar is, and
under which licence, stands in the description by which Ivy fetched it, in its own pom.xml, in
Spark's list of its jars, or in its manifest. A licence that stands nowhere is NOASSERTION.
"""

import hashlib
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

NOASSERTION: Final = "NOASSERTION"
# How licences are named, to SPDX's identifiers; the first that fits.
_SPDX: Final = {
    r"apache.*2|^ASL ?2": "Apache-2.0",
    r"\bMIT-0\b": "MIT-0",
    r"\bMIT\b": "MIT",
    r"BSD.*(0-clause)": "0BSD",
    r"BSD.*\b2\b|2-clause": "BSD-2-Clause",
    r"BSD.*\b3\b|3-clause|(new|revised) BSD|EDL|Eclipse Distribution": "BSD-3-Clause",
    r"(EPL|Eclipse Public).*2": "EPL-2.0",
    r"(EPL|Eclipse Public).*1": "EPL-1.0",
    r"CDDL.*1\.1": "CDDL-1.1",
    r"CDDL|COMMON DEVELOPMENT AND DISTRIBUTION": "CDDL-1.0",
    r"CC0": "CC0-1.0",
}
_POM: Final = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.xml")
_TEXT: Final = re.compile(r"(META-INF/)?LICENSE(\.txt|\.md)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Jar:
    """What a jar is.

    Attributes:
        group: Maven's group; empty if nothing says it.
        artifact: Maven's name.
        licenses: names or SPDX identifiers; empty if nothing says them.
        version: Maven's version as its file's name has it, with the classifier if there is one.
    """

    group: str
    artifact: str
    licenses: tuple[str, ...] = ()
    version: str = ""


def spdx(name: str) -> str:
    """Return SPDX's identifier of a licence, or the name itself."""
    fitting = (spdx_id for form, spdx_id in _SPDX.items() if re.search(form, name, re.IGNORECASE))
    return next(fitting, " ".join(name.split()))


def fetched_by_ivy(cache: Path) -> dict[str, Jar]:
    """Return the jars that Ivy's cache describes, by the names that Spark gives their files."""
    jars = {}
    for file in sorted(cache.rglob("ivy-*.xml")):
        info = ET.parse(file).getroot().find("info")  # noqa: S314 - Ivy wrote it
        if info is not None:
            group, artifact = info.get("organisation", ""), info.get("module", "")
            names = [item.get("name") or item.get("url") for item in info.iter("license")]
            licenses = tuple(map(spdx, filter(None, names)))
            jars[f"{group}_{artifact}-{info.get('revision')}"] = Jar(group, artifact, licenses)
    return jars


def listed_by_spark(text: str) -> dict[str, tuple[str, str]]:
    """Return group and licence by artifact, from the LICENSE of Spark's distribution."""
    artifacts, license_name = {}, "Apache-2.0"
    for line, following in pairwise([*text.splitlines(), ""]):
        if line.strip() and re.fullmatch("-{4,}", following):
            license_name = spdx(line)
        if listed := re.match(r"([\w-]+(?:\.[\w-]+)*):([\w.-]+)(?=[:\s]|$)", line):
            artifacts[listed[2]] = (listed[1], license_name)
    return artifacts


def described_inside(jar: Path) -> Jar | None:
    """Return what a jar's own pom.xml says of it; None if it has none of its own."""
    with ZipFile(jar) as archive:
        for name in filter(_POM.fullmatch, archive.namelist()):
            pom = ET.fromstring(archive.read(name))  # noqa: S314 - a jar that the image runs
            for element in pom.iter():
                element.tag = element.tag.rpartition("}")[2]
            artifact = pom.findtext("artifactId", "").strip()
            # Others are of what is shaded into the jar.
            if re.search(rf"(^|_){re.escape(artifact)}-\d", jar.stem):
                group = pom.findtext("groupId") or pom.findtext("parent/groupId") or ""
                names = [item.text for item in pom.iterfind("licenses/license/name")]
                return Jar(group.strip(), artifact, tuple(map(spdx, filter(None, names))))
    return None


def licenses_inside(jar: Path) -> tuple[str, ...]:
    """Return the first licence that a jar's manifest names, or the one whose text is in it."""
    with ZipFile(jar) as archive:
        names = archive.namelist()
        if "META-INF/MANIFEST.MF" in names:
            manifest = archive.read("META-INF/MANIFEST.MF").decode(errors="replace")
            unfolded = re.sub(r"\r?\n ", "", manifest)
            if stated := re.search(r"^Bundle-License: *(\S.*)$", unfolded, re.MULTILINE):
                return (spdx(stated[1]),)
        for name in filter(_TEXT.fullmatch, names):
            head = archive.read(name)[:1_000].decode(errors="replace")
            if (license_id := spdx(" ".join(head.split())[:120])) in _SPDX.values():
                return (license_id,)
    return ()


def identify(file: Path, by_ivy: dict[str, Jar], by_spark: dict[str, tuple[str, str]]) -> Jar:
    """Return what a jar is, and its licences, by what says it first."""
    stem = file.stem
    fitting = [name for name in by_ivy if stem == name or stem.startswith(f"{name}-")]
    inside = described_inside(file)
    jar = by_ivy[max(fitting, key=len)] if fitting else inside
    if jar is None:
        artifact = re.split(r"-(?=\d)", stem, maxsplit=1)[0]
        jar = Jar(by_spark.get(artifact, ("", ""))[0], artifact)
    licenses = jar.licenses or (inside.licenses if inside else ())
    group, listed = by_spark.get(jar.artifact, ("", ""))
    if not licenses:
        licenses = (listed,) if listed and group == jar.group else licenses_inside(file)
    version = stem.rpartition(f"{jar.artifact}-")[2] if jar.artifact != stem else ""
    return replace(jar, version=version, licenses=tuple(dict.fromkeys(licenses)))


def components(folder: Path, ivy: Path) -> list[dict[str, Any]]:
    """Return CycloneDX's components for all jars below a folder; one that is there twice is one.

    Args:
        folder: that of the image.
        ivy: Ivy's cache.
    """
    by_ivy = fetched_by_ivy(ivy)
    texts = [path.read_text() for path in folder.rglob("pyspark-*.dist-info/licenses/LICENSE")]
    by_spark = listed_by_spark("\n".join(texts))
    by_ref: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.rglob("*.jar")):
        content = file.read_bytes()
        jar, digest = identify(file, by_ivy, by_spark), hashlib.sha256(content).hexdigest()
        kind = f"maven/{jar.group}" if jar.group else "generic"
        purl = f"pkg:{kind}/{jar.artifact}@{jar.version}"
        component = by_ref.setdefault(
            f"{purl}#{digest}",
            {
                "bom-ref": f"{purl}#{digest[:12]}",
                "type": "library",
                **({"group": jar.group} if jar.group else {}),
                "name": jar.artifact,
                "version": jar.version,
                "purl": purl,
                "hashes": [{"alg": "SHA-256", "content": digest}],
                "licenses": [{"license": _license(name)} for name in jar.licenses],
                "evidence": {"occurrences": []},
            },
        )
        location = str(file.relative_to(folder))
        component["evidence"]["occurrences"].append({"location": location})
    return list(by_ref.values())


def _license(name: str) -> dict[str, str]:
    return {"id" if name in _SPDX.values() else "name": name}


def complete(python: dict[str, Any], jars: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the bill of the Python packages with the jars; each component has a licence."""
    both = [*python["components"], *jars]
    unnamed: list[dict[str, Any]] = [{"license": {"name": NOASSERTION}}]
    return {
        **python,
        "components": [{**one, "licenses": one.get("licenses") or unnamed} for one in both],
    }


def license_list(bill: dict[str, Any]) -> str:
    """Return a readable list: each licence, and below it what is under it."""
    under: dict[str, list[str]] = defaultdict(list)
    for component in bill["components"]:
        names = sorted({_name(item) for item in component["licenses"]}, key=str.lower)
        group = f"{component['group']}:" if "group" in component else ""
        under[", ".join(names)].append(f"{group}{component['name']} {component['version']}")
    return "\n".join(
        "\n  ".join([name, *sorted(under[name], key=str.lower)]) + "\n"
        for name in sorted(under, key=str.lower)
    )


def _name(item: dict[str, Any]) -> str:
    """Return a licence's expression, SPDX's identifier, or name without the classifier's path."""
    named: dict[str, str] = item.get("license", item)
    return named.get("expression") or named.get("id") or named["name"].rpartition(" :: ")[2]


def main(arguments: Sequence[str]) -> None:
    """Write both files.

    Raises:
        ValueError: the bill is not what CycloneDX's schema asks for.
    """
    # Beside cyclonedx-py.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    python, folder, ivy = map(Path, arguments)
    bill = complete(json.loads(python.read_text()), components(folder, ivy))
    text = json.dumps(bill, indent=1)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise ValueError(f"not a bill of materials: {error}")
    (folder / "sbom.cdx.json").write_text(text)
    (folder / "licenses.txt").write_text(license_list(bill))


if __name__ == "__main__":
    main(sys.argv[1:])
