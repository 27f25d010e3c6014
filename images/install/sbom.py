"""Prints what an image or a virtual environment holds, as CycloneDX 1.5: Python packages, and Debian's where there are any.

    sbom.py PYTHON NAME >FILE        PYTHON: the interpreter whose packages are listed, by `pip inspect`. NAME: of the whole

The standard library alone is used, and no network. The same packages give the same bytes: no moment, no random number.
Format: https://cyclonedx.org/docs/1.5/json/, package URLs: https://github.com/package-url/purl-spec
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from urllib.parse import quote


def python_packages(python: str) -> list[dict[str, object]]:
    """A component for each distribution that this interpreter sees."""
    told = subprocess.run([python, "-m", "pip", "inspect"], check=True, capture_output=True).stdout
    found = []
    for item in json.loads(told)["installed"]:
        about = item["metadata"]
        name, version = re.sub(r"[-_.]+", "-", about["name"]).lower(), about["version"]
        licence = about.get("license_expression") or about.get("license", "")
        found.append(component(name, version, f"pkg:pypi/{name}@{quote(version)}", licence))
    return found


def debian_packages() -> list[dict[str, object]]:
    """A component for each installed package of Debian or Ubuntu; none elsewhere."""
    form = "${db:Status-Abbrev} ${Package} ${Version} ${Architecture}\n"
    try:
        told = subprocess.run(["dpkg-query", "-W", "-f", form], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    rows = [line.split() for line in told.splitlines() if line.startswith("ii ")]
    vendor = distribution()
    return [
        component(name, version, f"pkg:deb/{vendor}/{name}@{quote(version)}?arch={kind}") for _, name, version, kind in rows
    ]


def distribution() -> str:
    """`debian` or `ubuntu`, as os-release(5) names it."""
    with open("/etc/os-release", encoding="utf-8") as file:
        return next((line[3:].strip().strip('"') for line in file if line.startswith("ID=")), "debian")


def component(name: str, version: str, address: str, licence: str = "") -> dict[str, object]:
    """One component. A licence is an expression, or words; longer texts are left out."""
    made: dict[str, object] = {"type": "library", "bom-ref": address, "name": name, "version": version, "purl": address}
    if licence and "\n" not in licence and len(licence) < 100:
        made["licenses"] = [{"license": {"name": licence}}]
    return made


def main() -> None:
    """Prints the document."""
    python, name = sys.argv[1:]
    components = sorted((*python_packages(python), *debian_packages()), key=lambda one: str(one["bom-ref"]))
    unique = {one["bom-ref"]: one for one in components}
    made = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": name}},
        "components": list(unique.values()),
    }
    json.dump(made, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
