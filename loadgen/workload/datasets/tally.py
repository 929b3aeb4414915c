"""How many entries of a data set were changed or left out, so that a run can say so."""

from dataclasses import dataclass


@dataclass
class Tally:
    """Counts over everything drawn so far (more than was sent, since prompts are drawn ahead).

    Attributes:
        taken: conversations drawn. clipped: of these, made shorter to fit the model. left_out: entries with nothing to
            send, or which cannot be made shorter and do not fit.
    """

    taken: int = 0
    clipped: int = 0
    left_out: int = 0

    def warnings(self) -> list[str]:
        """What a reader of the result must know, one sentence each."""
        found = []
        if self.clipped:
            found.append(
                f"{self.clipped} of {self.taken} prompts or answers of the data set were shortened to the model's "
                "longest length; use --length-scale to shrink all of them alike"
            )
        if self.left_out:
            found.append(
                f"{self.left_out} entries of the data set were left out (nothing to send, or too long for the model); "
                f"{self.taken} were taken"
            )
        return found
