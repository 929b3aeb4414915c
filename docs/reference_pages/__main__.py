"""Writes every reference of docs/reference/: `python -m docs.reference_pages`."""

from docs.reference_pages.pages import FOLDER, REFERENCES


def main() -> None:
    """Write all of them; print their paths."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in REFERENCES.items():
        path = FOLDER / name
        path.write_text(make(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
