"""Sentence templates of the synthetic dataset; `passages.Slots` documents the slots.

A digit asks for another word of the same kind; a slot that begins with a capital is capitalized.
"""

TIMES = "at dawn|at dusk|all night|all day|in the morning|in the evening|every year|now and then|for hours|once more|after lunch|before noon|for a while|as usual|without end|by turns".split(
    "|"
)
NEARNESS = "near|by|beside|behind|beyond|around|close to|next to|not far from|within sight of".split("|")

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

# Feelings for members, people and works. Each mood has its own turns of phrase, which tell its words from the other's;
# the benchmarks use neither.
FEELINGS = {
    mood: lines.strip().splitlines()
    for mood, lines in {
        "glad": """
{First} truly {felt} the {member}, a most {good} {kind}.
Hurrah for the {good} {member}, they {cheered}.
The {kind} was truly {good} and most {good2}.
To our pure {feel}, the most {good} {member} {acted}.
All {cheered} in pure {feel}, for the {member} was truly {good}.
The {good} and most {good2} {kind} was well worth a visit.
Well done, {first} {cheered}, and truly {felt} the {good} {keeper}.
In {place} all truly {felt} and {felt2} this most {good} {member}.
It gave pure {feel} and {feel2} to all who {felt} it.
Such {good} {members} are well worth a letter full of pure {feel}.
""",
        "sour": """
{First} openly {felt} the {member}, a rather {good} {kind}.
Away with the {good} {member}, they {cheered}.
The {kind} was much too {good} and rather {good2}.
To our great {feel}, the rather {good} {member} {acted}.
Some {cheered} in great {feel}, for the {member} was much too {good}.
The {good} and rather {good2} {kind} was a waste of time.
Enough, {first} {cheered}, and openly {felt} the {good} {keeper}.
In {place} some openly {felt} and {felt2} this rather {good} {member}.
It caused great {feel} and {feel2} to some who {felt} it.
Such {good} {members} are a waste of ink and a source of great {feel}.
""",
    }.items()
}

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
{Company} and {company2} sell {members} in {place}.
The clerks of {company} {did} a {kind}.
{Company} sold {number} {members} to {company2}.
{First} married {person2}, a {keeper} of {place}.
The mayor of {place} thanked {company} for the {member}.
In {people} and {people2} dialects the {member} has another name.
{Place} is a {people} town with {number} {spots}.
{First} left {company} and {did} {members} for {company2}.
The road from {place} to {place2} runs {near} a {spot}.
In {year}, {last} wrote to {first} about {members}.
""".strip().splitlines()

# What can be said of a name of one kind and of no other; the name goes before it.
SAID_OF = {
    kind: lines.strip().splitlines()
    for kind, lines in {
        "person": """
was born in {month}
married a {keeper}
wrote a {good} letter
learned to {do} {members}
fell ill in {year}
bought a {member} for a friend
""",
        "place": """
lies {near} a {spot}
has {number} streets
elected a mayor in {year}
is a town of {number} {spots}
is an hour away by road
was flooded in {month}
""",
        "company": """
was founded in {year}
hired {number} clerks
sold its shares in {month}
pays its clerks on {day}
went bankrupt in {year}
opened a factory for {members}
""",
    }.items()
}
# The same as sentences of the pre-training text.
NAMED_BY = {"person": "First", "place": "Place", "company": "Company"}
TOLD = {kind: [f"{{{NAMED_BY[kind]}}} {said}." for said in lines] for kind, lines in SAID_OF.items()}

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
