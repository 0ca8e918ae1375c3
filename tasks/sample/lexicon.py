"""The words of the sample world: topics with their nouns and verbs, feelings, opposites, and small lists.

Every verb is regular, so that a rule gives its forms (`world.third`, `world.past`). No word stands in two lists: what a word
means shows in its company alone.
"""

# name: (kinds, members, acts in three groups, spots in two groups, parts, keepers, deeds)
# `kinds` are class nouns (a robin is a bird); the words of one group of acts or spots are synonyms; `deeds` are what people do to members.
TOPICS = {
    "birds": (
        "bird fowl",
        "robin wren finch thrush heron magpie falcon raven starling plover curlew dunnock",
        "chirp warble twitter trill / soar hover flutter glide / roost nest perch brood",
        "hedge thicket shrub bramble / branch treetop twig bough",
        "feather wing beak plume talon crest",
        "birder falconer",
        "tame ring cage hatch",
    ),
    "fish": (
        "fish swimmer",
        "eel pike minnow sardine tuna marlin barbel turbot mackerel sturgeon gurnard haddock",
        "splash paddle wriggle dart / spawn breed multiply migrate / dive plunge submerge burrow",
        "reef shoal lagoon sandbank / pond brook millpond weir",
        "fin gill scale tail snout belly",
        "angler fishmonger",
        "hook net gut pickle",
    ),
    "trees": (
        "tree timber",
        "oak elm birch willow cedar maple poplar alder linden spruce hazel juniper",
        "bloom blossom flower ripen / sway creak bend rustle / sprout bud root thicken",
        "forest wood grove copse / ridge hillside slope knoll",
        "leaf trunk bark acorn cone sap",
        "forester woodman",
        "prune plant fell graft",
    ),
    "insects": (
        "insect bug",
        "beetle moth wasp cricket hornet gnat locust weevil aphid termite cicada mosquito",
        "buzz hum drone whirr / crawl creep scuttle scurry / swarm gather teem throng",
        "hive burrow hole crevice / lamp lantern candle torch",
        "antenna shell sting jaw abdomen larva",
        "beekeeper collector",
        "swat trap squash crush",
    ),
    "ships": (
        "ship vessel",
        "sloop ferry barge schooner galley cutter frigate canoe trawler clipper yawl dinghy",
        "sail cruise voyage steer / anchor moor dock berth / founder capsize flounder drown",
        "harbour port haven marina / strait channel sound fjord",
        "mast hull keel rudder deck cabin",
        "sailor boatman",
        "launch captain row caulk",
    ),
    "instruments": (
        "instrument noisemaker",
        "fiddle flute harp lute drum trumpet bassoon cello oboe banjo organ clarinet",
        "resound echo ring_out peal / play perform sound_up strum / squeak rattle buzz_on clang",
        "stage hall theatre ballroom / tavern inn alehouse cellar",
        "string reed key pedal valve bow",
        "musician bandsman",
        "tune practise string_up pluck",
    ),
}
