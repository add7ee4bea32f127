"""sums: arithmetic and word problems, made up from a seed."""

import random
from collections.abc import Callable, Iterator

_NAMES = [
    "Ana",
    "Ben",
    "Carla",
    "Daniel",
    "Elif",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Kim",
    "Leo",
    "Mia",
    "Noah",
    "Olga",
    "Pavel",
    "Rosa",
    "Sam",
    "Tara",
]
_THINGS = [
    "apples",
    "books",
    "pencils",
    "cookies",
    "marbles",
    "stickers",
    "tickets",
    "flowers",
    "eggs",
    "coins",
    "cups",
    "oranges",
    "cards",
]
_PLACES = [
    "school",
    "the market",
    "a bakery",
    "the library",
    "a farm",
    "the office",
    "a toy shop",
    "the park",
]


def sums(rng: random.Random, count: int) -> Iterator[str]:
    """`count` problems."""
    for _ in range(count):
        yield rng.choice(_KINDS)(rng)


def _plain(rng: random.Random) -> str:
    a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 30)
    form = rng.choice(
        (f"{a} + {b}", f"{a + b} - {b}", f"{a} * {c}", f"{b * c} / {c}", f"({a} + {b}) * {c}",
         f"{a} + {b} * {c}", f"{a + c}% of {b * 10}")
    )  # fmt: skip
    ask = rng.choice(
        (
            "What is {}?",
            "Calculate {}.",
            "Compute {} step by step.",
            "{} =",
            "Find the value of {}.",
        )
    )
    return ask.format(form)


def _equation(rng: random.Random) -> str:
    x, a, b = rng.randint(-12, 20), rng.randint(2, 12), rng.randint(1, 40)
    sign, right = rng.choice((("+", a * x + b), ("-", a * x - b)))
    ask = rng.choice(
        ("Solve for x: {}", "If {}, what is x?", "Solve the equation {} step by step.")
    )
    return ask.format(f"{a}x {sign} {b} = {right}")


def _shop(rng: random.Random) -> str:
    name, thing, other = rng.choice(_NAMES), *rng.sample(_THINGS, 2)
    n, m, price, more = rng.randint(2, 12), rng.randint(2, 9), rng.randint(1, 9), rng.randint(1, 12)
    return (
        f"{name} buys {n} {thing} for ${price} each and {m} {other} for ${price + more} each at "
        f"{rng.choice(_PLACES)}. {rng.choice(('How much does it cost in total?', f'{name} pays with $500. How much change is there?'))}"
    )


def _share(rng: random.Random) -> str:
    name, friend, thing = *rng.sample(_NAMES, 2), rng.choice(_THINGS)
    n, gone, back = rng.randint(20, 90), rng.randint(3, 15), rng.randint(2, 12)
    end = rng.choice(
        (
            f"How many {thing} does {name} have now?",
            f"{name} then divides the rest equally among {rng.randint(2, 5)} children. How many does each child get?",
            f"How many more {thing} than {friend} does {name} have if {friend} started with none?",
        )
    )
    return (
        f"{name} has {n} {thing}. {name} gives {gone} of them to {friend} and then finds {back} more at "
        f"{rng.choice(_PLACES)}. {end}"
    )


def _rate(rng: random.Random) -> str:
    name, speed, hours = rng.choice(_NAMES), rng.randint(3, 80), rng.randint(2, 9)
    pay, days = rng.randint(8, 30), rng.randint(2, 6)
    return rng.choice(
        (
            f"A train travels at {speed} miles per hour for {hours} hours. How far does it go?",
            f"{name} earns ${pay} an hour and works {hours} hours a day, {days} days a week. "
            f"How much does {name} earn in {rng.randint(2, 8)} weeks?",
            f"{name} reads {speed} pages a day. How many days does a book of {speed * hours} pages take? "
            f"If {name} reads twice as fast, how many days are saved?",
            f"It takes {name} {hours} hours to paint a wall. How many walls can {name} paint in {hours * days} hours?",
        )
    )


def _times(rng: random.Random) -> str:
    a, b, c = rng.sample(_NAMES, 3)
    n, k, d, thing = rng.randint(3, 25), rng.randint(2, 5), rng.randint(2, 15), rng.choice(_THINGS)
    return (
        f"{a} has {n} {thing}. {b} has {k} times as many {thing} as {a}, and {c} has {d} fewer than {b}. "
        f"How many {thing} do they have {rng.choice(('altogether', 'in total', 'together'))}?"
    )


def _shape(rng: random.Random) -> str:
    a, b = rng.randint(2, 40), rng.randint(2, 40)
    return rng.choice(
        (
            f"A rectangle is {a} cm long and {b} cm wide. What are its area and its perimeter?",
            f"What is the area of a triangle with base {a} and height {b}?",
            f"A square garden has sides of {a} meters. How many meters of fence are needed, and what is its area?",
            f"A circle has a radius of {a} cm. What is its circumference?",
            f"Find the average of {a}, {b}, {a + b} and {abs(a - b)}.",
        )
    )


_KINDS: tuple[Callable[[random.Random], str], ...] = (
    _plain, _equation, _shop, _shop, _share, _share, _rate, _times, _shape,
)  # fmt: skip
