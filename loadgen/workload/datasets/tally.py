"""Number of data set entries left out, for the run's report. Shortened ones are counted in their own records."""

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts over all entries drawn so far (more than were sent, since prompts are drawn ahead).

    Attributes:
        taken: conversations drawn. left_out: entries without a prompt, or which do not fit and cannot be shortened.
        notes: what a trace's reader had to make sense of.
    """

    taken: int = 0
    left_out: int = 0
    notes: dict[str, str] = field(default_factory=dict)

    def warnings(self) -> list[str]:
        """Cautions for a reader of the result, one sentence each."""
        found = [*self.notes.values()]
        if self.left_out:
            found.append(
                f"{self.left_out} entries of the data set were left out (nothing to send, or too long for the model); "
                f"{self.taken} were taken"
            )
        return found
