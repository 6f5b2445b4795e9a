"""The packages of the product: one list, whichever tool reads it."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOT_PRODUCT = {"tests", "benchmarks", "examples", "proof"}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
TOOLS = PROJECT["tool"]
PACKAGES = set(TOOLS["hatch"]["build"]["targets"]["wheel"]["packages"])


def test_the_wheel_holds_every_package_of_the_product() -> None:  # issue 8: the list of packages
    on_disk = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NOT_PRODUCT
    assert on_disk == PACKAGES


def test_the_import_contracts_see_what_the_wheel_holds() -> None:
    contracts = TOOLS["importlinter"]
    assert set(contracts["root_packages"]) == PACKAGES
    layered = {name for layer in contracts["contracts"][0]["layers"] for name in layer.split(" | ")}
    assert layered == PACKAGES


def test_types_are_checked_wherever_the_product_is() -> None:
    """pyright has no list of its own: it leaves out what is no product."""
    assert "include" not in TOOLS["pyright"]
    assert not PACKAGES & set(TOOLS["pyright"]["exclude"])


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_package_takes_the_import_name_of_another_distribution(package: str) -> None:  # D6
    owners = set(importlib.metadata.packages_distributions().get(package, ()))
    assert owners <= {"flow-engine"}
