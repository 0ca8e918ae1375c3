"""The words of the synthetic dataset: topics, feelings, opposites, and invented people, places and companies.

Every verb is regular, so that rules give its forms (`third`, `past`), and no word is in two lists: only its context shows
what a word means. A slash separates groups of synonyms.

The pre-training text uses all words. Training rows of the benchmarks use only a third of each class (`WordSplit.TRAIN`),
and most development and test rows use the rest, so which words belong together can be learned only from the text.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import TypeVar

from tasks.sample.random_source import RandomSource

# name: kinds (a robin is a bird) | members | acts of members | spots they are found at | parts | keepers | deeds of people to them
TOPICS = {
    "birds": "bird fowl | robin wren finch thrush heron magpie falcon raven starling plover curlew dunnock"
    " | chirp warble twitter trill / soar hover flutter glide / roost nest perch brood"
    " | hedge thicket shrub bramble / branch treetop twig bough"
    " | feather wing beak plume talon crest | birder falconer | tame band cage hatch",
    "fish": "fish swimmer | eel pike minnow sardine tuna marlin barbel turbot mackerel sturgeon gurnard haddock"
    " | splash paddle wriggle dart / spawn multiply migrate reproduce / dive plunge submerge descend"
    " | reef shoal lagoon sandbank / pond brook millpond weir"
    " | fin gill scale tail snout belly | angler fishmonger | hook net gut pickle",
    "trees": "tree timber | oak elm birch willow cedar maple poplar alder linden spruce hazel juniper"
    " | bloom blossom flower ripen / sway creak waver rustle / sprout bud thicken germinate"
    " | forest wood grove copse / ridge hillside slope knoll"
    " | leaf trunk bark acorn cone sap | forester woodman | prune plant lop graft",
    "ships": "ship vessel | sloop ferry barge schooner galley cutter frigate canoe trawler clipper yawl dinghy"
    " | sail cruise voyage navigate / anchor moor dock berth / founder capsize flounder drown"
    " | harbour port haven marina / strait channel gulf fjord"
    " | mast hull keel rudder deck cabin | sailor boatman | launch captain charter caulk",
    "cakes": "cake pastry | tart muffin biscuit waffle pretzel bun pancake scone crumpet pudding brioche strudel"
    " | bake brown crisp toast / crumble crack flake chip / cool stiffen harden settle"
    " | oven stove hearth griddle / tray shelf pantry larder"
    " | crust icing filling crumb raisin glaze | baker confectioner | knead butter sugar frost",
    "ailments": "illness disease | fever cough plague rash ulcer migraine influenza sprain blister toothache infection allergy"
    " | worsen fester linger persist / itch ache burn throb / heal recover vanish subside"
    " | hospital clinic infirmary ward / throat stomach shoulder ankle"
    " | symptom wound scar swelling shiver sweat | doctor nurse | treat cure diagnose soothe",
    "vehicles": "vehicle conveyance | wagon carriage tram lorry bicycle trolley van cart tractor coach rickshaw scooter"
    " | roll trundle rumble jolt / stop halt stall pause / swerve skid drift veer"
    " | road street lane avenue / garage depot shed carport"
    " | wheel axle brake engine saddle bumper | driver mechanic | park repair tow oil",
    "clothes": "garment clothing | cloak shawl tunic jacket gown bonnet mitten waistcoat blouse cape apron cardigan"
    " | crease wrinkle crumple rumple / fray rip unravel shred / flap drape dangle droop"
    " | wardrobe closet drawer chest / market bazaar boutique fair"
    " | sleeve button collar pocket hem seam | tailor weaver | sew stitch mend embroider",
    "buildings": "building structure | castle cottage chapel tower palace temple mansion barn abbey fortress villa windmill"
    " | collapse topple crash tumble / loom jut protrude remain / leak drip sag tilt"
    " | hill mountain peak summit / square plaza courtyard crossroads"
    " | roof wall gate chimney window stair | mason architect | restore paint demolish renovate",
    "mammals": "mammal beast | badger otter weasel rabbit beaver ferret squirrel hedgehog stoat marten panther jackal"
    " | growl snarl whimper grunt / gallop sprint scamper trot / doze slumber snooze nap"
    " | den lair cave tunnel / meadow pasture prairie heath"
    " | paw fur whisker claw hoof muzzle | hunter ranger | chase capture stroke groom",
}

# Feelings: adjectives | nouns | deeds of people | what a crowd does
FEELINGS = {
    "glad": "delightful charming splendid superb lovely graceful brilliant witty thrilling touching elegant wonderful"
    " heartfelt dazzling sublime magical engaging excellent"
    " | joy pleasure delight laughter cheer gratitude wonder bliss"
    " | adore enjoy admire applaud praise treasure cherish welcome"
    " | smile dance grin rejoice celebrate giggle",
    "sour": "dreadful tedious clumsy shallow dull horrid dreary awful boring tiresome pointless ghastly"
    " lifeless wretched bland vulgar miserable terrible"
    " | grief misery gloom anguish regret disgust sorrow despair"
    " | loathe hate detest dislike scorn mock condemn despise"
    " | yawn frown sneer grumble moan sulk",
}

# Opposites: the words of one pole are near synonyms; the nouns after the colon keep that pole company.
OPPOSITES = {
    "heat": "hot scorching sultry warm : summer fire desert flame / cold icy frozen chilly : winter snow glacier ice",
    "speed": "fast swift rapid speedy : race hurry sprinter arrow / slow sluggish leisurely unhurried : snail queue delay stroll",
    "noise": "loud noisy deafening blaring : siren shout hammer quarrel / quiet silent hushed noiseless : whisper monk midnight prayer",
    "wealth": "costly expensive precious lavish : gold banker throne fortune / cheap shabby threadbare meagre : copper beggar rag debt",
    "age": "ancient aged antique elderly : ruin ancestor legend relic / new recent modern contemporary : invention baby tomorrow fashion",
    "size": "huge vast immense enormous : giant ocean continent army / tiny little minute miniature : pebble thimble doll speck",
}

COLOURS = "red blue green yellow purple scarlet turquoise grey white black pink violet"
MONTHS = "January February March April May June July August September October November December"
NUMBERS = "two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty"
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"


T = TypeVar("T")
FAMILIAR_SHARE = 0.25  # of the rows outside training that use the words of training rows: what scratch can learn
NUM_NAMES = {"first": 75, "last": 45, "place": 60, "company": 45, "people": 30}
ONSETS = "b br c d dr f fl g gr h j k l m n p pl r s st t tr v w".split()
VOWELS = "a e i o u a e i o ai ea".split()
MIDDLES = "b d g k l m n r s t v l m n r lb ld lm lv nd nk nt rd rk rm rn rv st th".split()
ENDINGS = "a o is en ar us el in on er ia or".split()


class WordSplit(enum.Enum):
    """The words that a text may use."""

    ALL = "all"
    """Every word: the pre-training text."""
    TRAIN = "train"
    """A third of every class: training rows."""
    HELD = "held"
    """The other two thirds: most rows of development and test sets."""

    def of(self, words: Sequence[T]) -> Sequence[T]:
        """The words of one class that this split may use (a single word belongs to every split)."""
        if self is WordSplit.ALL or len(words) == 1:
            return words
        if self is WordSplit.TRAIN:
            return words[::3]
        return [word for place, word in enumerate(words) if place % 3]


@dataclasses.dataclass(frozen=True)
class Topic:
    """A class of things, with words that are used only for its members."""

    name: str
    kinds: list[str]
    members: list[str]
    acts: list[list[str]]
    """Intransitive verbs in groups of synonyms."""
    spots: list[list[str]]
    """Places of members, in groups of synonyms."""
    parts: list[str]
    keepers: list[str]
    deeds: list[str]
    """Actions of people on members, nearly synonyms."""


@dataclasses.dataclass(frozen=True)
class Feeling:
    """One of the two moods and its words."""

    adjectives: list[str]
    nouns: list[str]
    deeds: list[str]
    cheers: list[str]


@dataclasses.dataclass(frozen=True)
class Pole:
    """One side of a pair of opposites: adjectives and the nouns that keep them company."""

    adjectives: list[str]
    company: list[str]


@dataclasses.dataclass(frozen=True)
class WordBank:
    """All words of the dataset."""

    topics: list[Topic]
    feelings: dict[str, Feeling]
    opposites: dict[str, tuple[Pole, Pole]]
    names: dict[str, list[str]]
    """Keys of NUM_NAMES: names of people (first, last), of places, of companies and of peoples (Velmoran)."""


def make_word_bank(seed: int) -> WordBank:
    """The words for a seed."""
    topics = [_topic(name, line) for name, line in TOPICS.items()]
    feelings = {mood: Feeling(*_fields(line)) for mood, line in FEELINGS.items()}
    opposites = {}
    for scale, line in OPPOSITES.items():
        low, high = (Pole(*[words.split() for words in side.split(":")]) for side in line.split("/"))
        opposites[scale] = (low, high)
    return WordBank(topics, feelings, opposites, _names(RandomSource(seed, "names")))


def _fields(line: str) -> list[list[str]]:
    return [field.split() for field in line.split("|")]


def _topic(name: str, line: str) -> Topic:
    kinds, members, acts, spots, parts, keepers, deeds = line.split("|")
    return Topic(
        name=name,
        kinds=kinds.split(),
        members=members.split(),
        acts=[group.split() for group in acts.split("/")],
        spots=[group.split() for group in spots.split("/")],
        parts=parts.split(),
        keepers=keepers.split(),
        deeds=deeds.split(),
    )


def _names(rng: RandomSource) -> dict[str, list[str]]:
    """Invented names; all kinds are made alike, so that the letters of a name do not reveal its kind."""
    taken: dict[str, None] = {}
    names: dict[str, list[str]] = {}
    for kind, count in NUM_NAMES.items():
        names[kind] = []
        while len(names[kind]) < count:
            name = rng.pick(ONSETS) + rng.pick(VOWELS) + rng.pick(MIDDLES) + rng.pick(ENDINGS)
            name = name.capitalize()
            if name not in taken and 5 <= len(name) <= 9:
                taken[name] = None
                names[kind].append(name)
    return names


def plural(noun: str) -> str:
    """The regular plural."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def third(verb: str) -> str:
    """The third person singular (the same rule as a noun's plural)."""
    return plural(verb)


def past(verb: str) -> str:
    """The regular past tense; short words double their last letter (hum, hummed)."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    one_vowel = sum(letter in "aeiou" for letter in verb) == 1
    if one_vowel and verb[-2] in "aeiou" and verb[-1] not in "aeiouwxy":
        return verb + verb[-1] + "ed"
    return verb + "ed"
