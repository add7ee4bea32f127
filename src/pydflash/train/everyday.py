"""everyday: requests as people make them, put together from templates and topics."""

import random
from collections.abc import Iterator

_TOPICS = """the water cycle|photosynthesis|black holes|inflation|machine learning|the French Revolution|vaccines|climate change
|how a bill becomes law|gravity|the stock market|the human heart|volcanoes|the Internet|democracy|evolution|solar energy|music theory
|the Roman Empire|blockchain|sleep|plate tectonics|antibiotics|electric cars|the immune system|World War II|renewable energy|coffee
|time management|public speaking|meditation|healthy eating|saving money|learning a language|gardening|remote work|job interviews
|recycling|chess|photography|running a marathon|raising a puppy|baking bread|writing a novel|quantum computing|DNA|ocean currents
|the Moon landing|artificial intelligence in medicine|noise in cities|friendship|social media|working in teams|stress at work
|travelling alone|the history of writing|bees|glaciers|bridges|supply and demand|the scientific method|ancient Egypt|jazz|poetry"""
_PLACES = "Paris|Tokyo|Rome|New York|Istanbul|Kyoto|Cape Town|Lisbon|Iceland|Mexico City|Prague|Vancouver|Cairo"
_ROLES = "a pirate|a doctor|a history teacher|a detective|a travel guide|an old farmer|a robot|a chef|a scientist"
_FORMS = (
    "Explain {t} in simple terms.|What is {t}?|Write a short essay about {t}.|Give me five facts about {t}."
    "|Write a short story about {t}.|Write a poem about {t}.|What are the advantages and disadvantages of {t}?"
    "|Why does {t} matter?|List the main steps to get started with {t}.|Summarize what everyone should know about {t}."
    "|Explain {t} to a five-year-old.|How has {t} changed over the last hundred years?|Compare {t} and {u}."
    "|Write a blog post about {t} with a title and three sections.|Write an email to a colleague about {t}."
    "|What are common misconceptions about {t}?|Give me tips for {t}.|Write a dialogue between two friends about {t}."
    "|Draft a short speech about {t}.|Write three questions about {t} with answers.|Describe {t} in one paragraph."
    "|Plan a three-day trip to {p}.|Recommend three places to see in {p} and say why."
    "|Pretend to be {r} and tell me about {t}.|Imagine you are {r}. Introduce yourself and answer: what do you think of {t}?"
    "|Rewrite this politely: I don't care about {t}, stop asking me.|Make an outline for a presentation about {t}."
    "|Write a product review about a book on {t}.|Write a headline and a short news article about {t}."
    "|Extract the topics as a JSON list from this sentence: I read about {t}, {u} and {p} this week."
    "|Translate the idea of {t} into a metaphor and explain it.|Is {t} more important than {u}? Argue for both sides."
    "|Correct the grammar: she dont know nothing about {t} and her friends was asking about {u}."
)


def everyday(rng: random.Random, count: int) -> Iterator[str]:
    """`count` requests."""
    topics = [topic.strip() for topic in _TOPICS.split("|")]
    places, roles, forms = _PLACES.split("|"), _ROLES.split("|"), _FORMS.split("|")
    for _ in range(count):
        t, u = rng.sample(topics, 2)
        yield rng.choice(forms).format(t=t, u=u, p=rng.choice(places), r=rng.choice(roles))
