"""A griffe extension that shows the keywords of functions made by `graphc.keywords.takes`.

The keywords come from the fields of a class, so they exist only at run time.
"""

import inspect
from typing import Any

import griffe

KINDS = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
}


class Keywords(griffe.Extension):
    """Read signature and docstring from the function itself."""

    def on_function(self, *, func: griffe.Function, **rest: Any) -> None:
        """Replace signature and docstring of a function with the decorator."""
        if not any(str(decorator.value).startswith("takes(") for decorator in func.decorators):
            return
        made = griffe.dynamic_import(func.path)
        func.docstring = griffe.Docstring(inspect.getdoc(made) or "", parent=func)
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    each.name,
                    annotation=inspect.formatannotation(each.annotation).strip("'"),
                    kind=KINDS[each.kind],
                    default=None if each.default is each.empty else repr(each.default),
                )
                for each in inspect.signature(made).parameters.values()
            )
        )
