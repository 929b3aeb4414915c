"""`python -m loadgen.metrics` prints the table of metrics of README.md."""

from loadgen.metrics.definitions import metrics_table

if __name__ == "__main__":
    print(metrics_table())
