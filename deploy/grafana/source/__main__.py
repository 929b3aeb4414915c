"""Writes every board of deploy/grafana/boards/: `python -m deploy.grafana.source`."""

from deploy.grafana.source.all import BOARDS, FOLDER


def main() -> None:
    """Write all boards and print their paths."""
    for name, make in BOARDS.items():
        path = FOLDER / f"{name}.json"
        path.write_text(make(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
