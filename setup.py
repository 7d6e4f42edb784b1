"""Puts templates/ and static/ into the wheel as clusterwatch/assets.

In a checkout they lie at the top, where people look for them; settings find either place.
"""

from pathlib import Path

from setuptools import setup
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


setup(cmdclass={"build_py": BuildWithAssets})
