"""The recordings of vLLM (golden/vllm): requests and answers have the hashes that were written with them, and the requests
are those of golden/scripts/vllm_cases.py."""

import glob
import hashlib
import json
import os
import sys
import unittest

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "golden")
COUNTS = {"clean": 13, "gptq": 7, "gptq_as_v2": 13, "q_norm": 7, "rope_theta": 7, "template": 5}


def digest(value):
    """The sha256 of a JSON value as golden/vllm/README.md says: sorted keys, no spaces, UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


@unittest.skipUnless(os.path.isdir(GOLDEN), "skipped: golden/ is not beside this package")
class Recordings(unittest.TestCase):
    def recordings(self):
        for path in sorted(glob.glob(os.path.join(GOLDEN, "vllm", "*.json"))):
            with open(path, encoding="utf-8") as f:
                yield os.path.basename(path)[: -len(".json")], json.load(f)

    def test_every_hash_is_that_of_what_stands_beside_it(self):
        counts = {}
        for name, recording in self.recordings():
            counts[name] = len(recording["exchanges"])
            for e in recording["exchanges"]:
                for part in ("request", "response"):
                    self.assertEqual(digest(e[part]), e[f"{part}_sha256"], f"{name}: {e['name']}: {part}")
        self.assertEqual(counts, COUNTS)

    def test_the_requests_are_those_of_the_script(self):
        scripts = os.path.join(GOLDEN, "scripts")
        sys.path.insert(0, scripts)
        self.addCleanup(sys.path.remove, scripts)
        import vllm_cases

        for name, recording in self.recordings():
            self.assertEqual(recording["case"], name)
            case = vllm_cases.CASES[name]
            asked = {name: request for name, *request in vllm_cases.all_requests(case)}
            for e in recording["exchanges"]:
                self.assertEqual([e["method"], e["path"], e["request"]], asked[e["name"]], f"{name}: {e['name']}")


if __name__ == "__main__":
    unittest.main()
