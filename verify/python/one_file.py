#!/usr/bin/env python3
"""Packs this package into one file, `assay_taps.pyz`, for a container without pip:

python3 one_file.py [FILE]
python3 assay_taps.pyz vllm MODEL --prompt '7+8=' --out TRACE
PYTHONPATH=assay_taps.pyz python3 -c 'from assay_taps.hf import TransformersTap'
"""

import io
import os
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
MAIN = "import sys\nfrom assay_taps.__main__ import main\nsys.exit(main())\n"


def pack():
    """The bytes of the file; the same for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as z:
        files = {"__main__.py": MAIN.encode()}
        for folder, _, names in os.walk(os.path.join(HERE, "assay_taps")):
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    with open(path, "rb") as f:
                        files[os.path.relpath(path, HERE).replace(os.sep, "/")] = f.read()
        for name in sorted(files):
            z.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), files[name], zipfile.ZIP_DEFLATED)
    return b"#!/usr/bin/env python3\n" + buffer.getvalue()


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "assay_taps.pyz"
    with open(target, "wb") as out:
        out.write(pack())
    os.chmod(target, 0o755)
    print(target)
