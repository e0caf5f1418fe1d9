"""The bill of materials of the image: what deploy/sbom.py adds to what cyclonedx-py says."""

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest

from deploy import sbom

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<parent><groupId>org.example</groupId><artifactId>all</artifactId><version>7</version></parent>
<artifactId>{artifact}</artifactId>
<licenses><license><name>{license}</name></license></licenses></project>
"""
IVY = """<ivy-module version="2.0">
<info organisation="io.delta" module="delta-spark_2.13" revision="4.3.0">
<license name="Apache-2.0" url="http://www.apache.org/licenses/LICENSE-2.0"/></info></ivy-module>
"""


def jar(path: Path, **files: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(path, "w") as archive:
        for number, (name, text) in enumerate(files.items()):
            place = {"manifest": "META-INF/MANIFEST.MF", "license": "META-INF/LICENSE"}
            archive.writestr(place.get(name, f"META-INF/maven/g/{number}/pom.xml"), text)
    return path


def described(path: Path, ivy: Path) -> dict[str, Any]:
    [component] = sbom.components(path.parent, ivy)
    return dict(component)


@pytest.mark.slow
def test_every_jar_of_spark_is_in_the_bill_with_a_licence(tmp_path: Path) -> None:
    packages = Path(pyspark.__file__).parents[1]
    [distribution] = packages.glob("pyspark-*.dist-info")
    text = (distribution / "licenses" / "LICENSE").read_text()
    (tmp_path / distribution.name / "licenses").mkdir(parents=True)
    (tmp_path / distribution.name / "licenses" / "LICENSE").write_text(text)
    jars = sorted((packages / "pyspark" / "jars").glob("*.jar"))
    (tmp_path / "jars").mkdir()
    for file in jars:
        (tmp_path / "jars" / file.name).symlink_to(file)
    components = sbom.components(tmp_path, tmp_path / "none")
    places = {place["location"] for one in components for place in one["evidence"]["occurrences"]}
    assert places == {f"jars/{file.name}" for file in jars}
    assert [one["name"] for one in components if not one["licenses"]] == []
    assert [one["name"] for one in components if "group" not in one] == []
    purls = {one["purl"] for one in components}
    # Described inside, and only in Spark's list.
    assert any(purl.startswith("pkg:maven/org.apache.spark/spark-core_2.13@") for purl in purls)
    assert any(purl.startswith("pkg:maven/org.roaringbitmap/RoaringBitmap@") for purl in purls)


def test_a_jar_is_what_ivy_fetched_it_as(tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "io.delta" / "delta-spark_2.13"
    cache.mkdir(parents=True)
    (cache / "ivy-4.3.0.xml").write_text(IVY)
    file = jar(tmp_path / "jars" / "io.delta_delta-spark_2.13-4.3.0.jar")
    component = described(file, tmp_path / "cache")
    assert component["purl"] == "pkg:maven/io.delta/delta-spark_2.13@4.3.0"
    assert component["licenses"] == [{"license": {"id": "Apache-2.0"}}]


def test_a_shaded_jar_is_described_by_its_own_pom(tmp_path: Path) -> None:
    inner = POM.format(artifact="guava", license="MIT License")
    own = POM.format(artifact="connector", license="The Apache License, Version 2.0")
    file = jar(tmp_path / "jars" / "org.example_connector-7-shaded.jar", inner=inner, own=own)
    component = described(file, tmp_path / "none")
    assert component["purl"] == "pkg:maven/org.example/connector@7-shaded"
    assert component["licenses"] == [{"license": {"id": "Apache-2.0"}}]


def test_a_licence_is_read_from_the_manifest_or_the_text(tmp_path: Path) -> None:
    manifest = (
        "Manifest-Version: 1.0\r\nBundle-License: https://www.eclipse.org/le\r\n gal/epl-v20\r\n"
    )
    stated = jar(tmp_path / "stated" / "a-1.jar", manifest=manifest)
    assert described(stated, tmp_path)["licenses"] == [{"license": {"id": "EPL-2.0"}}]
    text = jar(tmp_path / "text" / "b-1.jar", license="\n   Apache License\n   Version 2.0, ...")
    assert described(text, tmp_path)["licenses"] == [{"license": {"id": "Apache-2.0"}}]


def test_what_has_no_licence_says_so_in_bill_and_list(tmp_path: Path) -> None:
    file = jar(tmp_path / "jars" / "mystery-1.0.jar")
    package = {"name": "odd", "version": "2", "purl": "pkg:pypi/odd@2"}
    mit = {"license": {"name": "License :: OSI Approved :: MIT License"}}
    named = {"name": "plain", "version": "3", "licenses": [mit]}
    python = json.loads(json.dumps({"bomFormat": "CycloneDX", "components": [package, named]}))
    bill = sbom.complete(python, sbom.components(file.parent, tmp_path))
    assert [one["licenses"] for one in bill["components"]] == [
        [{"license": {"name": "NOASSERTION"}}],
        [mit],
        [{"license": {"name": "NOASSERTION"}}],
    ]
    assert sbom.license_list(bill) == (
        "MIT License\n  plain 3\n\nNOASSERTION\n  mystery 1.0\n  odd 2\n"
    )


def test_a_jar_that_is_there_twice_is_one_component_with_two_places(tmp_path: Path) -> None:
    for folder in ("jars", "spark"):
        jar(tmp_path / folder / "a-1.jar", license="MIT License")
    [component] = sbom.components(tmp_path, tmp_path / "none")
    assert component["evidence"]["occurrences"] == [
        {"location": "jars/a-1.jar"},
        {"location": "spark/a-1.jar"},
    ]
