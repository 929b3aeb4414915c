"""`python -m serving.config` prints the table of configuration keys, as it stands in deploy/README.md."""

from serving.config.table import config_table

if __name__ == "__main__":
    print(config_table())
