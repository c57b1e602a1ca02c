"""The codecs are those of `DIALECTS.md`: its sections, its tables of names, and a test for each of its lines."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from bus import dialects
from bus.dialects import DIALECT_ALIASES, DIALECTS, dialect
from bus.dialects.evidence import codec, spellings
from bus.dialects.evidence.payloads import SPECIAL_TYPES
from bus.dialects.forms import Form
from bus.dialects.frameworks.codec import KINDS_OF_FRAMEWORKS
from bus.dialects.layered import payloads
from bus.dialects.layered.layers import PRIORITY
from bus.dialects.plain_ids.payloads import KINDS_OF_PLAIN_IDS
from bus.protocol.envelope import Performative
from bus.vocabulary import BUILT_IN
from bus.vocabulary.forms import Level

PAGE = (Path(dialects.__file__).parent / "DIALECTS.md").read_text("utf-8")
HERE = Path(__file__).parent
SECTIONS: dict[str, str] = dict(re.findall(r"^## (\d)\. [^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def tables(section: str) -> list[list[list[str]]]:
    """The tables of a section, without their heads: rows of cells."""
    found: list[list[list[str]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", SECTIONS[section], re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        found.append(rows[2:])
    return found


def named_tests(name: str) -> set[str]:
    tree = ast.parse((HERE / f"test_{name.replace('-', '_')}.py").read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def assert_tested(name: str, names: str) -> None:
    assert names
    assert {f"test_{test}" for test in names.split()} <= named_tests(name)


# --- sections ---------------------------------------------------------------------------------------------------------


def test_every_dialect_has_its_section_and_its_module() -> None:
    titles = re.findall(r"^## [2-7]\. (\S+)(?: \(seed (\d+)\)| 1\.0)$", PAGE, re.MULTILINE)
    assert [name.lower() for name, _ in titles] == list(DIALECTS)
    assert {digits: name for name, digits in titles if digits} == DIALECT_ALIASES
    for name in DIALECTS:
        module = dialect(name)
        assert callable(module.decode)
        assert callable(module.encode)
        assert module.__doc__ is not None


def test_the_page_speaks_of_this_project_alone() -> None:
    for word in ("design", "attack", "agent-protocols"):
        assert word not in PAGE
    for path in re.findall(r"`(bus/[^`]+)`", PAGE):
        assert (Path(dialects.__file__).parents[2] / path).exists()


# --- names that the page and the codecs have both ---------------------------------------------------------------------


def test_the_kinds_of_000_are_those_of_the_page() -> None:
    union = next(row for row in tables("2")[1] if row[0].startswith("task_handoff"))
    types = [text.strip().strip("`").removesuffix("` 1.0.0") for text in union[1].split(",")]
    assert dict(zip(union[0].split(", "), types, strict=True)) == payloads.TYPES
    assert payloads.VERSIONS == {"approval.request": "1.0.0"}
    bare = re.search(r"for (`research_output`.*?) -> (`research\.output`.*?) also", SECTIONS["2"])
    assert bare is not None
    names, kinds = (re.findall(r"`([^`]+)`", text) for text in bare.groups())
    assert dict(zip(names, kinds, strict=True)) == payloads.PIPELINE


def test_the_envelope_of_001_is_that_of_the_page() -> None:
    on_page = {word for row in tables("3")[0] for word in re.findall(r"[a-z_]+", row[0])}
    members = codec.MEMBERS_OF_EVIDENCE - {"type", "from", "to", "x_sealbus"}
    assert members <= on_page
    assert "`agent-msg.v1`" in SECTIONS["3"]
    assert codec._VERSION == "agent-msg.v1"


def test_the_special_payloads_of_001_are_those_of_the_page() -> None:
    on_page = {name for row in tables("3")[1] for name in row[0].split(", ")} - {"the others"}
    special = {*SPECIAL_TYPES, *spellings.RENAMES, *(kind for kind, _ in spellings._OF_ONE_TYPE)}
    # These two have no more than a confidence, which is a word wherever the format shows one, and references.
    assert on_page - {"task.result", "evidence.observed"} == special
    assert on_page <= BUILT_IN.names()


def test_the_kinds_of_002_are_those_of_the_page() -> None:
    table = next(rows for rows in tables("4") if rows[0][0] == "request")
    assert {row[0]: row[1] for row in table} == KINDS_OF_PLAIN_IDS


def test_the_performatives_of_003_are_the_eleven() -> None:
    assert "the eleven only" in SECTIONS["5"]
    acts = {name.removeprefix("act.").replace("-", "_") for name in BUILT_IN.names() if name.startswith("act.")}
    assert acts == set(get_args(Performative))
    assert len(acts) == 11


def test_the_kinds_of_004_are_those_of_the_page() -> None:
    envelope, payloads = tables("6")
    kinds = next(row[2] for row in envelope if row[0] == "/message_type")
    assert set(kinds.split(", ")) == set(KINDS_OF_FRAMEWORKS)
    assert {row[0]: row[1] for row in payloads} == KINDS_OF_FRAMEWORKS


def test_levels_priorities_and_words_are_those_of_the_page() -> None:
    assert len(get_args(Level)) == 8
    assert "outside the eight" in SECTIONS["1"]
    rule = re.search(r"low (\d), normal and medium (\d), high (\d), critical (\d)\.", SECTIONS["1"])
    assert rule is not None
    words: Form[int] = PRIORITY
    assert [str(words.read(word)) for word in ("low", "normal", "high", "critical")] == list(rule.groups())
    said = [words.written(number) for number in range(10)]
    assert said == ["low"] * 4 + ["normal"] * 3 + ["high"] * 2 + ["critical"]


# --- a test for each line ---------------------------------------------------------------------------------------------

EXAMPLES: dict[str, str] = {
    "000 s2 layer 1 (`data` alone)": "data_alone_is_a_handoff",
    "000 s2 combined": "the_hash_of_the_combined_example_is_none",
    "000 s2 layer 3 fragment's hash `e3b0c442...`": "the_hash_of_layer_three_is_that_of_no_bytes",
    "000 s4.2 (comment and `[...]` removed)": "the_example_of_versions_is_a_handoff",
    "000 s6.3 three pipeline outputs": (
        "the_outputs_of_the_pipeline_come_back some_hashes_of_the_pipeline_hold_in_pythons_form_only"
    ),
    "000 s1 incident (`result` for `output`)": "a_message_without_a_recognisable_type_is_refused",
    "001 s4 envelope": "the_envelope_needs_a_payload the_envelope_with_a_payload_comes_back",
    "001 s2.1": "the_short_form_comes_back",
    "001 s5.1 to s5.7, s5.9, s5.10": "a_fragment_comes_back what_is_approved_is_the_hash_of_the_action_as_it_is_here",
    "001 s5.8": "an_approval_of_no_hash_is_refused",
    "001 s6.2 to s6.4, s12.3, s13.2 to s13.5": "a_fragment_comes_back",
    "001 s8.1 result, s8.3 schema": (
        "a_review_by_required_actions_is_of_the_second_version encoded_patches_fit_the_formats_own_schema"
    ),
    "001 s9.2, exercise 2": "marked_content_is_no_message a_text_that_was_observed_instructs_nobody",
    "001 s12.4 `critical_fields`": "critical_fields_are_pointers_here",
    "001 exercise 3 v1": "a_review_by_comments_is_of_the_first_version_and_upcast",
    "002 request, response (2), handshake, error, discover, announcement": (
        "the_formats_examples_are_refused_for_their_ids the_formats_examples_come_back_unchanged_with_true_ids"
    ),
    "002 authenticated": (
        "the_authenticated_example_has_a_nonce_of_33_characters the_tag_goes_to_the_ingress_with_the_bytes_it_signs"
    ),
    "003 B request, inform, error": "the_formats_examples_come_back_unchanged",
    "003 C handler reply": "the_formats_own_reply_of_a_handler_is_refused",
    "003 message with `ttl: 0`, or 36 dashes as id": "what_a_member_may_not_be_is_refused",
    "004 task request, task response": "the_formats_whole_examples_come_back_unchanged",
    "004 status update, error, heartbeat": "the_formats_fragments_come_back_unchanged",
    "004 with `max_retries: 1.5`, without `delivery_mode`": (
        "what_a_member_may_not_be_is_refused_with_its_pointer without_a_delivery_mode_a_message_is_asynchronous"
    ),
}


@pytest.mark.medium
def test_every_example_of_the_page_has_a_test() -> None:
    lines = [row[0] for row in tables("8")[0]]
    assert lines == list(EXAMPLES)
    for line, names in EXAMPLES.items():
        assert_tested(DIALECT_ALIASES[line[:3]], names)


IN_LAYERS = "a_message_in_layers_says_the_canonical_one"
SPELLED = "every_spelling_comes_back"
REFUSED = "what_a_member_may_not_be_is_refused_with_its_pointer"
ROWS_000: dict[str, str] = {
    "/data/content/action": f"{IN_LAYERS} {REFUSED}",
    "/data/content, the rest": f"{IN_LAYERS}",
    "/data/parameters": f"bounds_among_the_parameters_are_constraints_too {SPELLED}",
    "/data/results": "results_are_those_of_a_task only_a_completed_result_can_be_said",
    "/data/artifacts": f"artifacts_of_a_result_are_references {SPELLED}",
    "/metadata/message_id, timestamp": f"an_id_and_a_time_can_be_made {IN_LAYERS}",
    "/metadata/task_id": "a_handoff_without_a_task_is_its_own",
    "/metadata/correlation_id, trace_id": "a_conversation_is_a_correlation_or_a_trace",
    "/metadata/sender_agent_id, sender_agent_version, sender_host": f"{IN_LAYERS} {SPELLED}",
    "/metadata/receiver_agent_id": f"{IN_LAYERS} {REFUSED}",
    "/metadata/ttl_seconds, /routing/ttl": "a_lifetime_is_said_once",
    "/verification/schema_version": f"a_version_that_the_format_never_had_is_refused_as_such {SPELLED}",
    "/verification/content_hash, content_hash_algorithm": (
        "the_hash_of_python_is_accepted_and_comes_back a_hash_that_drops_what_is_nested_is_never_accepted "
        f"what_is_changed_after_it_was_hashed_is_refused the_content_hash_is_recomputed_for_changed_data {REFUSED}"
    ),
    "/verification/agent_signature, signature": "signatures_are_claims",
    "/verification/proof_chain": (
        "a_forged_proof_chain_is_kept_but_never_trusted a_sealed_chain_is_said_after_the_foreign_one"
    ),
    "/routing/priority, max_retries, retry_backoff, idempotency_key": f"{IN_LAYERS} {REFUSED}",
    "/routing/reply_to, dead_letter_queue": "what_goes_elsewhere_has_no_effect",
    "/message_id, /message_type, /schema_version": "what_a_message_of_the_union_may_not_be_is_refused_with_its_pointer",
    "task_handoff, tool_result, approval_request, status_update, error_report": (
        "a_message_of_each_of_the_five_types_comes_back a_payload_fits_its_type_and_no_other "
        "a_newer_approval_cannot_be_said a_bare_message_of_each_of_the_five_types_comes_back"
    ),
    "/payload/*": "the_payload_of_the_formats_example_needs_no_version the_priority_of_a_task_is_that_of_its_message",
    "/payload/from_agent, source_agent, /metadata/sender_agent_id": (
        "a_receiver_agrees_with_whom_a_task_is_for what_a_message_of_the_union_may_not_be_is_refused_with_its_pointer"
    ),
    "/payload/to_agent, /metadata/receiver_agent_id": "a_receiver_agrees_with_whom_a_task_is_for",
    "/payload/task_id, /metadata/task_id": "what_a_message_of_the_union_may_not_be_is_refused_with_its_pointer",
    "/payload/priority": "the_priority_of_a_task_is_that_of_its_message",
    "/payload/timeout_seconds (approval)": "an_approval_of_the_format_is_the_older_version",
    "/metadata/*, the rest": "a_message_of_each_of_the_five_types_comes_back",
}
ENVELOPE = "an_envelope_says_the_canonical_one"
PAYLOAD_SPELLED = "every_spelling_of_a_payload_comes_back"
ROWS_001: dict[str, str] = {
    "/schema_version": "another_version_and_another_type_are_refused_as_such",
    "/message_id, run_id, conversation_id, task_id, parent_task_id, correlation_id, intent, idempotency_key": (
        f"{ENVELOPE} {REFUSED} every_encoded_message_has_the_members_the_format_requires "
        "ids_that_repeat_the_conversation_are_dropped_unless_required"
    ),
    "/causation_id": f"{ENVELOPE} {SPELLED}",
    "/timestamp": f"{ENVELOPE} {SPELLED}",
    "/sender, /recipient {type, id, role, version}": f"{ENVELOPE} {SPELLED}",
    "/tenant_id": f"{ENVELOPE} every_encoded_message_has_the_members_the_format_requires",
    "/trace_id, /span_id": "a_trace_of_the_w3c_is_a_traceparent",
    "/sequence_number": f"{SPELLED} {REFUSED}",
    "/message_type": "another_version_and_another_type_are_refused_as_such",
    "/authority: decision_right, max_side_effect, can_read, can_write, can_execute, cannot_execute, "
    "requires_human_approval": (f"{ENVELOPE} {SPELLED}"),
    "/authority/requires_approval_for": "authority_has_three_shapes_there_and_one_here",
    "/security: trust_level, contains_untrusted_content, data_classification, policy_tags": (
        "an_unknown_trust_level_counts_as_model_generated the_sealed_level_is_said_not_the_claimed_one"
    ),
    "/critical_fields": f"critical_fields_are_pointers_here {SPELLED}",
    "/payload": f"{PAYLOAD_SPELLED}",
    "task.request": f"the_bounds_of_a_task_have_places_of_their_own {PAYLOAD_SPELLED}",
    "task.accepted, handoff.accepted": f"{PAYLOAD_SPELLED} what_a_payload_may_not_be_is_refused_with_its_pointer",
    "task.result": f"{PAYLOAD_SPELLED}",
    "evidence.observed": "texts_are_references_and_words_are_numbers a_confidence_is_a_word_there",
    "review.result": (
        "a_review_by_comments_is_of_the_first_version_and_upcast a_review_by_required_actions_is_of_the_second_version"
    ),
    "approval.request": "what_is_approved_is_the_hash_of_the_action_as_it_is_here",
    "approval.decision": "a_decision_is_about_the_work_it_is_part_of an_approval_of_no_hash_is_refused",
    "error.reported": "an_error_that_can_be_recovered_from_is_retryable",
    "handoff.request": "the_flags_of_a_handoff_are_authority authority_has_three_shapes_there_and_one_here",
    "issue.intake": "what_a_user_reports_is_content a_report_that_is_marked_comes_back_marked",
    "pr.create.request": "a_pull_request_has_one_key",
    "capability.advertisement": "texts_are_references_and_words_are_numbers",
    "the others": "a_fragment_comes_back",
}


@pytest.mark.parametrize(("section", "name", "tested"), [("2", "layered", ROWS_000), ("3", "evidence", ROWS_001)])
def test_every_row_of_000_and_001_has_a_test(section: str, name: str, tested: dict[str, str]) -> None:
    rows = [row[0] for table in tables(section) for row in table]
    assert rows == list(tested)
    for names in tested.values():
        assert_tested(name, names)
