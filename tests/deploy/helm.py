"""Lints or renders the chart as `helm lint --strict` and `helm template` do, with the engine of Helm 4.

  helm.py lint|template CHART [--values FILE | --set TEXT | --set-json TEXT | --set-file TEXT]...

Building helm takes a machine with two cores three minutes; this package holds it as a library.
"""

import sys

import helm_python as helm

READERS = {
    "--values": lambda path: helm.values_from_yaml(open(path, encoding="utf-8").read()),
    "--set": helm.parse_set_string,
    "--set-json": helm.parse_set_json,
    "--set-file": helm.parse_set_file,
}


def merged(values, more):
    """As Helm merges values: maps by their keys, everything else is replaced."""
    both = isinstance(values, dict) and isinstance(more, dict)
    return {**values, **{key: merged(values.get(key), more[key]) for key in more}} if both else more


command, path, *options = sys.argv[1:]
values = {}
for option, text in zip(options[::2], options[1::2], strict=True):
    values = merged(values, READERS[option](text))
try:
    if command == "lint":
        found = helm.lint(path, values, strict=True)
        wrong = [message for message in found["messages"] if message["severity"] > 1]
        sys.exit("\n".join(map(str, wrong + found["errors"])) or None)
    chart = helm.Chart.load(path)
    chart.validate_schema(chart.merge_values(values))
    manifests = chart.render(values, name="edge", namespace="ratelimit")
except helm.HelmError as error:
    sys.exit(str(error))
for name, text in sorted(manifests.items()):
    if name.endswith(".yaml") and text.strip():
        print(f"---\n# Source: {name}\n{text.removeprefix('---').strip()}")
