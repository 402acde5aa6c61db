"""The BM25 formula: the weight of a word in a text. Pure."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["idf", "saturated"]

Doubles: TypeAlias = npt.NDArray[np.float64]

# Recall is the same for k1 from .8 to 2 and b from .3 to .75; a small b suits short rounds.
K1 = 1.2
B = 0.5


def idf(found: npt.ArrayLike, count: int) -> Doubles:
    """Return the inverse document frequency of words: `log(1 + (count - found + 0.5) / (found + 0.5))`.

    Robertson's formula with a 1 in the logarithm, as in Lucene, so that it is never negative: "Which BM25 do you
    mean?", Kamphuis et al., ECIR 2020.

    Args:
        found: The number of texts with each word.
        count: The number of all texts.

    Example:
        >>> idf([1, 9], 10).round(3).tolist()
        [1.992, 0.147]
    """
    number = np.asarray(found, np.float64)
    rare: Doubles = np.log(1 + (count - number + 0.5) / (number + 0.5))
    return rare


def saturated(times: npt.NDArray[np.int64], lengths: Doubles, mean_length: float) -> Doubles:
    """Return BM25's saturated term frequency: `times / (times + k1 * (1 - b + b * length / mean length))`.

    BM25 is this times `idf`, summed over the words of a question (Robertson and Zaragoza, "The Probabilistic Relevance
    Framework: BM25 and Beyond", 2009), with k1 = 1.2 and b = 0.5.

    Args:
        times: Number of occurrences of the word in each text.
        lengths: Number of words of each of these texts.
        mean_length: Mean number of words of all texts.

    Returns:
        One number from 0 to 1 for each text.
    """
    return times / (times + K1 * (1 - B + B * lengths / mean_length))
