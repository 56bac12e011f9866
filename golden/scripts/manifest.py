"""Regenerate golden/manifest.json from the files on disk. Standard library only."""

import hashlib
import json
import pathlib

from fixtures import FIXTURES, files, pinned

GOLDEN = pathlib.Path(__file__).resolve().parent.parent


def entry(fixture):
    listed = []
    for name in files(GOLDEN, fixture):
        data = (GOLDEN / name).read_bytes()
        listed.append({"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return {
        "about": fixture.about,
        "script": "scripts/" + fixture.script,
        "command": ["python", *fixture.command()],
        "seed": fixture.seed,
        "packages": pinned(GOLDEN, fixture.packages),
        "bitwise_repeatable": True,
        "limits_on_another_cpu": fixture.limits,
        "not_rebuilt": list(fixture.given),
        "files": listed,
    }


def main():
    manifest = {
        "version": 1,
        "bitwise_repeatable_means": "same bytes from the pinned packages on the same kind of CPU",
        "fixtures": {name: entry(fixture) for name, fixture in FIXTURES.items()},
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    (GOLDEN / "manifest.json").write_text(text, encoding="utf-8")
    total = sum(f["bytes"] for e in manifest["fixtures"].values() for f in e["files"])
    print(f"{len(FIXTURES)} fixtures, {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
