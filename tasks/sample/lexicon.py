"""The words of the sample world: topics with their nouns and verbs, feelings, opposites and small lists.

Every verb is regular, so that a rule gives its forms (`world.third`, `world.past`), and no word stands in two lists: what a
word means shows in its company alone. A slash parts groups of synonyms.
"""

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
    "insects": "insect bug | beetle moth wasp cricket hornet gnat locust weevil aphid termite cicada mosquito"
    " | buzz hum drone whirr / crawl scuttle scurry scramble / swarm gather teem throng"
    " | hive burrow hole crevice / lamp lantern candle torch"
    " | antenna shell stinger jaw abdomen larva | beekeeper collector | swat trap squash crush",
    "ships": "ship vessel | sloop ferry barge schooner galley cutter frigate canoe trawler clipper yawl dinghy"
    " | sail cruise voyage navigate / anchor moor dock berth / founder capsize flounder drown"
    " | harbour port haven marina / strait channel gulf fjord"
    " | mast hull keel rudder deck cabin | sailor boatman | launch captain charter caulk",
    "instruments": "instrument soundbox | fiddle flute harp lute drum trumpet bassoon cello oboe banjo organ clarinet"
    " | resound echo resonate reverberate / thrum strum jangle tinkle / squeak rattle screech clang"
    " | stage theatre ballroom bandstand / tavern inn alehouse taproom"
    " | string reed pedal valve bow pipe | musician bandsman | tune practise pluck borrow",
    "cakes": "cake pastry | tart muffin biscuit waffle pretzel bun pancake scone crumpet pudding brioche strudel"
    " | bake brown crisp toast / crumble crack flake chip / cool stiffen harden settle"
    " | oven stove hearth griddle / tray shelf pantry larder"
    " | crust icing filling crumb raisin glaze | baker confectioner | knead butter sugar frost",
    "gems": "gem jewel | ruby opal garnet topaz emerald sapphire pearl agate diamond amethyst beryl zircon"
    " | glitter sparkle glisten twinkle / fade pale tarnish dim / reflect refract shimmer gleam"
    " | mine quarry shaft pit / casket crown necklace bracelet"
    " | facet carat lustre vein crystal setting | jeweller miner | polish engrave appraise buff",
    "ailments": "illness disease | fever cough plague rash ulcer migraine influenza sprain blister toothache infection allergy"
    " | worsen fester linger persist / itch ache burn throb / heal recover vanish subside"
    " | hospital clinic infirmary ward / throat stomach shoulder ankle"
    " | symptom wound scar swelling shiver sweat | doctor nurse | treat cure diagnose soothe",
    "vehicles": "vehicle conveyance | wagon carriage tram lorry bicycle trolley van cart tractor coach rickshaw scooter"
    " | roll trundle rumble jolt / stop halt stall pause / swerve skid drift veer"
    " | road street lane avenue / garage depot shed carport"
    " | wheel axle brake engine saddle bumper | driver mechanic | park repair tow oil",
    "weather": "weather tumult | storm gale blizzard drizzle hurricane breeze tornado squall monsoon cyclone tempest shower"
    " | roar howl thunder bluster / rage gust lash batter / ease abate calm dwindle"
    " | coast shore beach cliff / sky horizon cloud heaven"
    " | raindrop hailstone snowflake lightning puddle mist | forecaster meteorologist | predict forecast measure record",
    "clothes": "garment clothing | cloak shawl tunic jacket gown bonnet mitten waistcoat blouse cape apron cardigan"
    " | crease wrinkle crumple rumple / fray rip unravel shred / flap drape dangle droop"
    " | wardrobe closet drawer chest / market bazaar boutique fair"
    " | sleeve button collar pocket hem seam | tailor weaver | sew stitch mend embroider",
    "vegetables": "vegetable crop | turnip carrot cabbage onion radish leek pumpkin parsnip cucumber lettuce beetroot marrow"
    " | rot spoil decay moulder / simmer boil stew steam / sprawl flourish thrive mature"
    " | garden field allotment farmyard / kettle saucepan cauldron pot"
    " | peel stalk pip husk root tuber | farmer gardener | harvest chop pick weed",
    "buildings": "building structure | castle cottage chapel tower palace temple mansion barn abbey fortress villa windmill"
    " | collapse topple crash tumble / loom jut protrude remain / leak drip sag tilt"
    " | hill mountain peak summit / square plaza courtyard crossroads"
    " | roof wall gate chimney window stair | mason architect | restore paint demolish renovate",
    "books": "book text | novel poem ballad diary essay fable sonnet memoir pamphlet almanac chronicle anthem"
    " | narrate recount depict portray / conclude finish end close / rhyme alliterate scan chime"
    " | library archive bookshop museum / desk lectern bookcase cupboard"
    " | chapter page stanza preface index cover | author printer | publish translate quote annotate",
    "mammals": "mammal beast | badger otter weasel rabbit beaver ferret squirrel hedgehog stoat marten panther jackal"
    " | growl snarl whimper grunt / gallop sprint scamper trot / doze slumber snooze nap"
    " | den lair cave tunnel / meadow pasture prairie heath"
    " | paw fur whisker claw hoof muzzle | hunter ranger | chase capture stroke groom",
}

# Feelings: adjectives | nouns | deeds of people | what a crowd does
FEELINGS = {
    "glad": "delightful charming splendid superb lovely graceful brilliant witty thrilling touching elegant wonderful"
    " heartfelt inspired dazzling tender sublime magical engaging radiant masterly refreshing excellent marvellous"
    " | joy pleasure delight laughter cheer gratitude wonder bliss"
    " | adore enjoy admire applaud praise treasure cherish welcome"
    " | smile dance grin rejoice celebrate giggle",
    "sour": "dreadful tedious clumsy shallow dull horrid dreary awful boring tiresome pointless ghastly"
    " stale lifeless wretched bland vulgar miserable feeble annoying grim sloppy terrible hideous"
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
