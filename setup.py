"""Builds from an empty folder; setuptools would install what earlier builds left in build/lib."""

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class FreshBuild(build_py):
    """The build of Python files, after the removal of those of earlier builds."""

    def run(self) -> None:
        """Remove the folder of built files, then build."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": FreshBuild})
