"""Render validation results for Data Docs: renderers that the site's configuration names in place of the default ones.

The default page has a section per column, a status that is a picture of a font from another host, and tables in which all
unexpected rows share one cell. Here a page has one table: each expectation with its status in words, its severity, what was
observed, and one line per unexpected row. Everything that comes from a log is escaped here, as Great Expectations does not.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from great_expectations.checkpoint import UpdateDataDocsAction
from great_expectations.render import (
    CollapseContent,
    RenderedHeaderContent,
    RenderedSectionContent,
    RenderedStringTemplateContent,
    RenderedTableContent,
)
from great_expectations.render.renderer.content_block.validation_results_table_content_block import (
    ValidationResultsTableContentBlockRenderer,
)
from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer

from dispatch_core.audit.promises.promise import plain
from dispatch_core.audit.sentences.names import LONGEST_ON_PAGES, printable
from dispatch_expectations.result_tables import SHOWN

#: Unexpected rows of one expectation that a page shows.
MOST_SHOWN: Final = 100
#: Marks cells of rows that the filter "Failed Only" hides; Great Expectations' own name.
_MET_CELL: Final = "hide-succeeded-validation-target-child"


class ExpectationTable(ValidationResultsTableContentBlockRenderer):
    """One table row per expectation: status and severity, description and unexpected rows, observed value."""

    @classmethod
    def _get_content_block_fn(  # type: ignore[override]
        cls,
        expectation_type: str,  # noqa: ARG003  # one table row for every type
        expectation_config: Any = None,  # noqa: ARG003
    ) -> Callable[..., list[list[Any]]]:
        def table_row(result: Any, **_given: Any) -> list[list[Any]]:
            return [[_status(result), [_words(result), *_unexpected_rows(result)], _observed(result)]]

        return table_row


class ResultPage(ValidationResultsPageRenderer):
    """Page of one suite's results: an overview, and the expectations, those that are not met first.

    Left out is what only describes how Great Expectations read the batch, such as paths of this machine.
    """

    def _collect_rendered_document_content_sections(
        self,
        validation_results: Any,
        overview_content_blocks: list[Any],
        collapse_content_blocks: list[Any],
        columns: Mapping[str, list[Any]],
    ) -> list[RenderedSectionContent]:
        overview = [block for block in overview_content_blocks if not isinstance(block, CollapseContent)]
        sections = [RenderedSectionContent(section_name="Overview", content_blocks=overview)]
        results = sorted(validation_results.results, key=lambda result: bool(result.success))
        if results:
            header = RenderedHeaderContent(
                header="Expectations", styling={"classes": ["col-12"], "header": {"classes": ["alert"]}}
            )
            table = ExpectationTable.render(results)
            sections.append(
                RenderedSectionContent(section_name="Expectations", content_blocks=[header, table])
            )
        return sections


class DataDocs(UpdateDataDocsAction):
    """Write the pages of all results of a checkpoint at once.

    The default action builds the site anew for each result, which takes longer than to judge them.
    """

    type: Literal["data_docs"] = "data_docs"  # type: ignore[assignment]

    def run(self, checkpoint_result: Any, action_context: Any = None) -> dict[Any, Any]:
        """Write the pages; returns no addresses, because the pages are published elsewhere later."""
        self._build_data_docs(site_names=self.site_names)
        return {}


class NoIndex:
    """Builder of no index page: ``data_docs`` writes the index, with the verdicts."""

    def __init__(self, **_given: Any) -> None:
        pass

    def build(self, **_given: Any) -> tuple[None, dict[str, Any]]:
        """Build nothing."""
        return None, {}


def _status(result: Any) -> RenderedStringTemplateContent:
    severity = getattr(result.expectation_config.severity, "value", result.expectation_config.severity)
    word, css = ("met", "text-success") if result.success else (f"not met ({severity})", "text-danger")
    if _raised(result):
        word, css = "not evaluated", "text-danger"
    return RenderedStringTemplateContent(
        content_block_type="string_template",
        string_template={"template": word, "tag": "span", "styling": {"classes": [css]}},
        styling={"parent": {"classes": ["status", *([_MET_CELL] if result.success else [])]}},
    )


def _words(result: Any) -> str:
    """Write the description, which is escaped where it is made, else the type; and where it is documented."""
    config = result.expectation_config
    words = config.description or html.escape(config.type)
    notes = f'<div class="notes">{html.escape(config.notes)}</div>' if isinstance(config.notes, str) else ""
    return f"<div>{words}</div>{notes}"


def _observed(result: Any) -> str:
    found = result.result
    if _raised(result):
        return _text(_raised(result))
    if "unexpected_count" in found:
        return f"{plain(found['unexpected_count'])} of {plain(found['element_count'])} rows"
    return _text(found.get("observed_value", ""))


def _unexpected_rows(result: Any) -> Iterable[Any]:
    """Make the table of the unexpected rows; columns in which all are empty are left out."""
    listed = result.result.get("unexpected_index_list") or []
    rows = [row for row in listed[:MOST_SHOWN] if isinstance(row, Mapping)]
    if not rows:
        return
    judged = [name for name in rows[0] if name not in (*SHOWN, "over_limit")]
    named = [
        name
        for name in SHOWN
        if name != "row"
        and any(row.get(name) not in ("", None) for row in rows)
        # The cluster distinguishes rows only where there are several.
        and (name != "cluster" or len({row.get(name) for row in rows}) > 1)
    ]
    yield RenderedTableContent(
        content_block_type="table",
        table=[[_text(row.get(name)) for name in (*judged, *named)] for row in rows],
        header_row=[html.escape(name) for name in (*judged, *named)],
        styling={"classes": ["table-responsive"], "body": {"classes": ["unexpected"]}},
    )
    if len(listed) > len(rows):
        table = result.expectation_config.meta.get("table", "verdicts")
        yield f"<div>{len(rows)} of {plain(len(listed))} rows are shown; all are in the table {html.escape(table)}.</div>"


def _raised(result: Any) -> str:
    """Return the message of an exception during evaluation, or ""."""
    info = result.exception_info or {}
    records = [info] if "raised_exception" in info else list(info.values())
    return "; ".join(str(record.get("exception_message")) for record in records if record["raised_exception"])


def _text(value: Any) -> str:
    if isinstance(value, float):
        return plain(value)
    return html.escape(printable("" if value is None else str(value), LONGEST_ON_PAGES))
