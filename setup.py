"""Puts templates/ and static/ into the wheel as clusterwatch/assets, and compiles the reader of dumps.

In a checkout the two folders lie at the top, where people look for them; settings find either place. The
compiled piece is optional: without a compiler everything installs and gives the same answers, slower.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
ASSETS = ("templates", "static")


class BuildWithAssets(build_py):
    """The usual build, then the two folders; an editable install needs no copy."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in ASSETS:
            target = Path(self.build_lib) / "clusterwatch" / "assets" / name
            self.copy_tree(str(ROOT / name), str(target))


READER = Extension(
    "collectors.formats._pickle_columns",
    ["collectors/formats/_pickle_columns.c"],
    depends=sorted(map(str, Path("collectors/formats").glob("_pickle_*.h"))),
    py_limited_api=True,
    optional=True,
)

setup(
    cmdclass={"build_py": BuildWithAssets},
    ext_modules=[READER],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
