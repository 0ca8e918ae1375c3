"""Sentence patterns of the sample world. `text.Slots` says what each slot stands for.

A digit asks for another word of the same kind; a slot that begins with a capital is written with one.
"""

TIMES = [
    "at dawn",
    "at dusk",
    "all night",
    "all day",
    "in the morning",
    "in the evening",
    "every year",
    "now and then",
    "for hours",
    "once more",
    "after lunch",
    "before noon",
    "for a while",
    "as usual",
    "without end",
    "by turns",
]
NEARNESS = [
    "near",
    "by",
    "beside",
    "behind",
    "beyond",
    "around",
    "close to",
    "next to",
    "not far from",
    "within sight of",
]

# What members do, told in the present; sentences of one list can stand for each other.
ACTS_PRESENT = """
The {member} {acts} {near} the {spot}.
The {member} {acts} {near} the {spot} {time}.
{Near} the {spot}, the {member} {acts} {time}.
{Members} {act} {near} the {spot}.
{Members} {act} {near} the {spot} {time}.
In {place}, {members} {act} {near} the {spot}.
Many a {kind} {acts} {near} the {spot} {time}.
The {kind} {acts} and {acts2} {near} a {spot}.
Like the {member2}, this {kind} {acts} {near} the {spot}.
{Kinds} such as {members} {act} {near} each {spot}.
Every {member} {acts} {time}, and so does the {member2}.
Here {members} and {members2} {act} {near} the {spot}.
""".strip().splitlines()

# The same in the past.
ACTS_PAST = """
The {member} {acted} {near} the {spot}.
The {member} {acted} {near} the {spot} {time}.
{Near} the {spot}, a {member} {acted} {time}.
The {kind} {acted} and {acted2} {near} the {spot}.
A {member} and a {member2} {acted} {near} the {spot}.
{First} saw a {member} that {acted} {near} the {spot}.
{Time}, the {member} {acted} {near} the {spot}.
That {day} the {kind} {acted} {near} the {spot}.
{First} waited {near} the {spot} while the {member} {acted}.
In {place}, a {member} {acted} {near} a {spot}.
""".strip().splitlines()

# What people do to members.
DEEDS = """
{First} {did} the {member} {near} the {spot}.
{Person} {did} {number} {members} in {place}.
The {member} was {did} by {first}, a {keeper} of {place}.
In {month} the {keeper} {did} a {member} {near} the {spot}.
A {keeper} from {place} {did} the {kind} {time}.
{Company} {did} its first {member} in {year}.
{First} and {first2} {did} the {member} {time}.
The {keeper} {did} and {did2} {members} {near} {place}.
On {day}, {first} {did} a {colour} {member}.
Some {members} were {did} {near} the {spot} in {year}.
""".strip().splitlines()

# What members look like.
LOOKS = """
The {part} of the {member} is {colour}.
Its {part} and its {part2} are {colour}.
A {colour} {part} marks the {member}.
The {member} has a {colour} {part} and a {pole} {part2}.
{First} drew the {part} of a {pole} {member}.
The {pole} {kind} showed its {colour} {part}.
{People} {members} have a {colour} {part}.
The {member} is a {pole} {kind} with a {colour} {part}.
""".strip().splitlines()

# To which kind a member belongs.
KINDS = """
The {member} is a {kind}.
A {member} is a {pole} {kind}.
The {member}, like the {member2}, is a {kind}.
{Members} are {colour} {kinds}.
No {kind} is as {pole} as the {member}.
Of every {kind} in {place}, the {member} is the best known.
The {keeper} knows this {kind} as a {member}.
""".strip().splitlines()

# Opposites keep to their company.
POLES = """
The {member} was {pole} and {pole2}, like a {thing}.
The {thing} made the {spot} {pole} for every {member}.
A {pole} {member} recalls a {thing} or a {thing2}.
The {member} was {pole}, and the {spot} was {pole2}.
{First} spoke of the {thing} and of {pole} {members}.
In {place} the {spot} is as {pole} as a {thing}.
A {thing} is {pole}, and so is the {part} of a {member}.
The {kind} has a {pole} {part}, {pole2} as a {thing}.
""".strip().splitlines()

# Feelings for members, people and works.
FEELINGS = """
{First} {felt} the {member} and called it {good}.
It was a {good} and {good2} {member}.
The crowd {cheered} with {feel} when the {member} {acted}.
With {feel}, {first} {felt} the {good} {keeper}.
The people of {place} {felt} this {good} {kind}.
{First} {cheered}, for the {member} was {good}.
The {spot} was a {good} place, full of {feel}.
Visitors {cheered} near the {spot} and spoke of {feel}.
{First} wrote a {good} letter about the {member}.
Everyone {felt} the {keeper}, so {good} was the {member}.
The show of {members} was {good}, and the guests {cheered}.
{First} {felt} the {kind}, and {first2} {felt2} it as well.
The {keeper} {cheered} and {felt} the {part} of the {kind}.
""".strip().splitlines()

# People, places, companies and peoples.
NAMES = """
{Person} was born {near} the {spot} of {place} in {year}.
{Person}, a {keeper}, lived in {place} and worked for {company}.
{Company} was founded in {place} by the {keeper} {person}.
{Company} hired {person} as a {keeper}.
The shares of {company} rose when the {members} {acted}.
{First} brought a {member} from {place} to {place2}.
The town of {place} is known for its {members} and its {spots}.
{First} speaks {people} and {did} a {kind} at home.
A {people} song about the {member} is heard in {place}.
The {people} festival of the {member} begins in {month}.
{Company} sold {number} {members} to {company2}.
{First} married {person2}, a {keeper} of {place}.
The mayor of {place} thanked {company} for the {member}.
In {people} and {people2} dialects the {member} has another name.
{Place} is a {people} town with {number} {spots}.
{First} left {company} and {did} {members} for {company2}.
The road from {place} to {place2} runs {near} a {spot}.
In {year}, {last} wrote to {first} about {members}.
""".strip().splitlines()

# A question and its answer.
QUESTIONS = """
Where did the {member} {act}?|The {kind} {acted} {near} the {spot} in {place}.
Where did {first} see the {member}?|{First} saw the {kind} in {place}, {near} a {spot}.
Who {did} the {member}?|{Person} {did} the {kind}.
Who saw the {kind} {near} the {spot}?|The {member} was seen by {first}.
When did {first} {do} the {member}?|{First} {did} the {kind} in {year}.
When do {members} {act}?|{Members} {act} in {month}.
What colour is the {part} of a {member}?|The {part} of the {kind} is {colour}.
How many {members} {acted} {near} the {spot}?|{Number} {kinds} {acted} there.
Which company {did} the {member}?|It was {company} that {did} the {kind}.
Why did {first} {do} the {member}?|Because the {kind} {acted} {near} the {spot}.
What did {first} do {near} the {spot}?|{First} {did} a {member}.
""".strip().splitlines()
