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
