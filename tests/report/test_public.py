"""The functions of the package ``dfact.report`` itself."""

import pkgutil
from importlib import import_module

import pytest

import dfact
import dfact.report
from dfact.data.examples import ipip_ascado_items
from tests.conftest import planted_answers


@pytest.fixture(scope="module")
def classes() -> dfact.GradeOfMembership:
    return dfact.GradeOfMembership(n_components=2, random_state=0).fit(planted_answers(200, 12, 2, 0) + 1)


def test_text_lists_the_leading_items_with_their_texts(classes: dfact.GradeOfMembership) -> None:
    names = {str(j): text for j, text in enumerate(ipip_ascado_items().values())}
    text = dfact.report.text(classes, top=1, texts=names)
    assert text.startswith("model ")
    leading = str(classes.item_parameters_.iloc[:, 0].idxmax())
    assert names[leading] in text
    assert len(text) < len(dfact.report.text(classes, top=3, texts=names))


def test_memberships_are_drawn_for_two_or_three_classes(classes: dfact.GradeOfMembership) -> None:
    assert dfact.report.plot_memberships(classes).axes
    four = dfact.GradeOfMembership(n_components=4, random_state=0).fit(planted_answers(200, 12, 4, 1) + 1)
    with pytest.raises(dfact.ParameterError, match="4 classes, expected 2 for a line or 3 for a triangle"):
        dfact.report.plot_memberships(four)


@pytest.mark.parametrize("name", ["dfact", "dfact.report", "dfact.selection", "dfact.data.examples"])
def test_a_public_module_lists_its_public_names_alone(name: str) -> None:
    """Completion in a notebook offers what ``dir`` lists."""
    module = import_module(name)
    import_module(f"{name}.report" if name == "dfact" else name)
    assert set(dir(module)) - {"__version__"} == set(module.__all__)
    assert "Any" not in dir(module)


def test_no_module_hides_a_public_function() -> None:
    """Importing a module sets its name on the package."""
    for module in pkgutil.walk_packages(dfact.report.__path__, "dfact.report."):
        import_module(module.name)
    assert [name for name in dfact.report.__all__ if not callable(getattr(dfact.report, name))] == []
