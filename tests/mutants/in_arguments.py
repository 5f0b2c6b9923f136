"""Bugs in how arguments and results become JSON and Python values again."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SCHEMA = "jobs/arguments/schema.py"
_HINTS = "jobs/test_type_hints.py"
_RESULTS = "app/test_result.py"

MUTANTS = (
    Mutant(
        "result-as-it-is-stored",
        "The result of a job is given back as the JSON that is stored, whatever the task's annotation says",
        "app.py",
        "return found.result if task is None else task.signature.read_result(found.id, found.result)",
        "return found.result",
        (
            f"{_RESULTS}::test_the_same_from_synchronous_code",
            f"{_RESULTS}::test_a_result_that_no_longer_fits_is_refused_with_its_place_and_the_stored_json_is_named",
        ),
    ),
    Mutant(
        "snooze-among-the-results",
        "A stored result is read as the first class of the annotation, although that one only postpones a job",
        "jobs/arguments/signature.py",
        "results = tuple(member for member in members if member not in not_results)",
        "results = tuple(members)",
        (f"{_RESULTS}::test_what_a_handler_returns_in_place_of_a_result_is_never_one[either]",),
    ),
    Mutant(
        "digits-are-a-number",
        "A text of digits is read as a whole number",
        _SCHEMA,
        '**dict.fromkeys(("bool", "float", "int", "str"), _strict),',
        '**dict.fromkeys(("bool", "float", "str"), _strict),',
        (
            f"{_HINTS}::test_does_not_fit[digits for a whole number]",
            f"{_RESULTS}::test_nothing_is_converted_in_a_result",
        ),
    ),
    Mutant(
        "union-in-its-own-order",
        "A union takes its first member that fits although a JSON type among them fits as well",
        _SCHEMA,
        'members.sort(key=lambda each: _JSON_FIRST.get(each["type"], 3))',
        "members.sort(key=lambda each: 0)",
        (f"{_HINTS}::test_a_json_type_is_taken_before_a_class_also_inside_of_other_hints",),
    ),
    Mutant(
        "sets-in-any-order",
        "Equal sets are stored in different orders, so a repeated call looks like another",
        "jobs/arguments/encode.py",
        "sorted(_list(value, loose), key=repr)",
        "list(_list(value, loose))",
        (f"{_HINTS}::test_equal_sets_are_stored_equally",),
    ),
    Mutant(
        "more-fields-than-a-dataclass-has",
        "An object with a field that the dataclass does not have is read all the same, and the field is lost",
        _SCHEMA,
        '.setdefault("extra_behavior", "forbid")',
        '.setdefault("extra_behavior", "ignore")',
        (f"{_HINTS}::test_does_not_fit[a dataclass that has more]",),
    ),
)
