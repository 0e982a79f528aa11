"""Rules: load them, reject those that can never be evaluated, and compare measurements with them.

`load_rules(file)` and `read_rules(text)` return rules; `judge_rules(rules, facts)` returns outcomes, and
`judge_measures(rules, facts)` returns them next to the measure they apply to.
"""

from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.judge import judge_measures, judge_rules
from gpuproof.verdict.rules.load import load_rules, read_rules, rules_of_entries
from gpuproof.verdict.rules.model import Rules

__all__ = [
    "FleetFacts",
    "Rules",
    "judge_measures",
    "judge_rules",
    "load_rules",
    "read_rules",
    "rules_of_entries",
]
