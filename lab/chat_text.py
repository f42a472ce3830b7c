"""Stories, dialogues, explanations, lists, letters and copy tasks."""

from grammar import family, fill


def build_chat(template, slots):
    """Prompt, response, and the drawn words that the response must have."""
    prompt, drawn = fill(template.ask, slots), list(slots.values())
    slots.sealed = True
    reply = fill(template.reply, slots)
    words = [str(w) for w in drawn if str(w) in reply]
    return prompt, reply, "|".join(words)


def nothing(rng):
    """Most chat templates need only words from the pools."""
    return {}


@family("chat", "story", """
Tell me a short story about {A}, a {thing} and the {place}.
> One morning {A} went to the {place}. On the way {A.she} found a {thing}. It \
was old, but {A} liked it very much. {A.She} cleaned the {thing} and put it \
into {A.her} bag. At the {place} a woman asked about it. It was hers! {A} gave \
the {thing} back, and both of them were happy.

Write a story in which {A} loses a {color} {thing}.
> {A} had a {color} {thing} and took it everywhere. One day it was gone. {A} \
looked under the bed, behind the door and in the kitchen. Then {A.she} sat \
down and thought. Where was I last? {A} ran back to the school. There was the \
{color} {thing}, on {A.her} own chair. {A} laughed and never lost it again.

I would like a bedtime story with a {animal} called {A}.
> Once there was a {animal} called {A}. {A} could not sleep, because the moon \
was so bright. So {A} walked to the window and counted the stars. One, two, \
three. Soon {A.her} eyes were heavy. The {animal} lay down in the warm straw, \
and the moon said good night. Then {A} slept until the morning.

Please write a story about two friends, {A} and {B}, who build a {thing} on a \
{weather} day.
> {A} and {B} were best friends. One {weather} day {A} said: we can build a \
{thing}. {B} brought wood and {A} brought paint. They worked all day and did \
not stop for lunch. In the evening the {thing} was ready. It was not perfect, \
but it was theirs. {A} and {B} looked at it and smiled.

Tell a story: {A} meets a {animal} in the {place}.
> {A} walked through the {place} when {A.she} heard a sound. Behind a tree sat \
a {animal}. It was hungry and cold. {A} gave the {animal} some bread and \
waited. After a while it came closer. From that day on the {animal} waited for \
{A} in the {place}, and they shared their bread.

Can you tell me a story about a {job} named {A} and a {adj} {thing}?
> {A} was a {job} and worked from morning to night. On a shelf stood a {adj} \
{thing}, and nobody knew why. One night the light went out. {A} took the {adj} \
{thing} in both hands, and it began to shine. Now the {job} could see the way. \
Since then {A} keeps it close by.

Write about a {weather} day at the {place} with {A} and {B}.
> It was a {weather} day. {A} and {B} met at the {place} after school. At \
first they did not know what to do. Then {B} had an idea. They played a game \
with small stones until it got dark. On the way home {A} said: that was the \
best {weather} day of the year.

Make up a story about a race between a {animal} and a {animal2} to the {place}.
> The {animal} said: I am faster than you. The {animal2} said: let us see. \
They ran from the old tree to the {place}. The {animal} ran fast, but then it \
stopped to rest. The {animal2} was slow and did not stop. It came to the \
{place} first. The {animal} learned to finish what it begins.

Tell me how {A} learned {hobby}.
> {A} wanted to learn {hobby}, but it was hard. On the first day nothing \
worked. On the second day {A} wanted to stop. A friend said: try it a little \
every day. So {A} did. After a month {hobby} was easy and a lot of fun. Now \
{A} teaches {hobby} to others.

I want a story about a gift: {A} gives {B} a {thing}.
> It was the birthday of {B}. {A} had no money, so {A.she} made a {thing} at \
home. It took a whole week. {A} was afraid that {B} would not like it. But {B} \
opened the paper and smiled. A {thing} that you made, said {B}, is better than \
any from a shop.

Write a story that begins with rain and ends at the {place}. Use the name {A}.
> Rain fell on the roof, and {A} looked out of the window. All plans were \
gone. Then {A.she} took a coat and went out. The streets were empty and the \
air was clean. {A} jumped over every puddle. When the sun came out, {A.she} \
stood at the {place} and saw a rainbow.

Tell a story about {A}, who is {mood}, and a {animal} that helps.
> {A} was {mood} and sat alone at home. A {animal} came to the door and looked \
at {A.him}. Do you want to walk with me, it seemed to ask. They walked up the \
hill and saw the whole village. {A} told the {animal} everything. When they \
came home, {A} was not so {mood} any more.

Give me a story about a market where {A} sells {food}s every {day}.
> Every {day} {A} sold {food}s at the market. One {day} nobody came, because \
the bridge was broken. {A} looked at all the {food}s and had an idea. {A.She} \
carried them to the people at the bridge who were at work. They were hungry \
and bought every {food}. That evening {A} went home with an empty basket.

Write a funny story about {A} and a {animal} that eats {food}s.
> {A} put ten {food}s on the table and went out. When {A.she} came back, there \
were nine. {A} counted again: eight! Under the table sat a {animal} with a \
full mouth. {A} tried to be angry, but the {animal} looked so happy that \
{A.she} laughed. Then they ate the other {food}s together.

Tell me a story about a secret door in the {place} and a child named {A}.
> In the {place} there was a small door that nobody opened. A child named {A} \
turned the key and went in. Behind it was a room full of old clocks. All of \
them had stopped. {A} wound up one clock, and it began to tick. Then all the \
others followed. Since that day the {place} is never quiet.

Write a story of a letter from {A} to {B} that comes late. It is about \
{hobby}, and a {job} finds it.
> {A} wrote a letter to {B} and asked for help with {hobby}. The letter fell \
behind a box at the post office. A year later a {job} found it and brought it \
to {B}. {B} read it and ran to {A}. Am I too late, asked {B}. You are just in \
time, said {A}, I still cannot do it.

Tell a story with a lesson: {A} does not want to share a {thing} with {B}.
> {A} had a new {thing} and did not want to share it. {B} asked, but {A} said \
no. So {B} went to play with other children. {A} sat alone with the {thing}. \
It was no fun at all. The next day {A} said to {B}: let us use it together. \
And that was much better.

I need a story about a {color} {animal} at the {place}.
> Nobody had seen a {color} {animal} before. One evening it stood in the \
middle of the {place}. Some people were afraid and some took pictures. Only a \
small child went near it and said hello. The {color} {animal} bowed and walked \
away. Its steps left {color} flowers all over the {place}.

Write a short mystery about a missing {thing}, a {job} and a {animal}.
> The {thing} was gone from the table. The {job} looked at the floor and saw \
small wet steps. They led to the window. Outside, in the tall grass, sat a \
{animal}. It had the {thing} in its mouth. So you are the thief, said the \
{job} and laughed. The mystery of the {thing} was over.

Tell me about the first day of {A} at the {place}, and how {B} helped.
> It was the first day at the {place} for {A}. {A.She} did not know anybody, \
and {A.her} hands were cold. Then {B} came and said: it was the same for me \
last year. {B} showed {A} every room. At noon they ate together. On the way \
home {A} was no longer afraid of the {place}.

Write a story about a {adj} {thing} that can talk to {A}.
> {A} bought a {adj} {thing} at the market. At home it said: good evening. {A} \
nearly dropped it. Do not be afraid, said the {thing}, I only talk at night. \
They talked about the moon and the sea until late. In the morning the {thing} \
was silent, but {A} knew that it would talk again.

Tell the story of a long way from the {place} to the {place2}. {A} walks it \
and meets {B}.
> {A} had to walk from the {place} to the {place2}. The way was long and the \
bag was heavy. After an hour {A.she} met {B}, who had to go there too. They \
carried the bag together and told stories. When they saw the {place2}, {A} \
said: is it over already? A long way is short with a friend.

Write a story in which it is {weather} and a {job} needs help. {A} helps and \
gets a {thing}.
> It was so {weather} that nobody went out. Only a {job} was on the way, and \
the wheel of the cart was broken. {A} saw it from the window. {A.She} took a \
hammer and a rope and went out. Together they fixed the wheel. The {job} \
thanked {A} and gave {A.him} a {thing}.

Tell a story about growing: {A} plants a seed near the {place}.
> In spring {A} put a seed into the ground near the {place}. Every day {A.she} \
brought water. For weeks there was nothing to see. People laughed, but {A} \
waited. Then one morning a small green leaf came out. In summer there was a \
tall flower, and now people come to the {place} to see it.

Write a story about the night when {A} and {B} camped by the {place}, with a \
{animal} and some {food}s.
> {A} and {B} put up a tent by the {place}. When it was dark they heard steps. \
{B} held the lamp and {A} held {A.her} breath. Then a nose came into the tent. \
It was only a {animal}, and it wanted their {food}s. They laughed until it was \
late and gave it one {food}.

Tell a story about a mistake that {A}, a {job}, made.
> {A} was a good {job}, but one day {A.she} made a mistake. {A.She} wanted to \
hide it at first. All night {A} could not sleep. In the morning {A.she} told \
everybody what had happened. Nobody was angry. Now we can mend it, they said. \
{A} learned that the truth makes work easier.

Write a story about two {animal}s and one {food}.
> Two {animal}s found a {food} on the ground. It is mine, said the first. I \
saw it before you, said the second. They pulled until the {food} broke into \
two parts. The parts had the same size. The two {animal}s looked at each \
other. Then they sat down in the sun and ate.

Please tell a story about the {adj} {thing} of {A}'s grandmother.
> The grandmother of {A} had a {adj} {thing}. It had belonged to her own \
mother. When {A} was small, {A.she} was not allowed to touch it. One day the \
grandmother said: now it is yours. {A} held the {adj} {thing} with both hands. \
{A.She} keeps it in the best place of the house.
""")
def draw_story(rng):
    return nothing(rng)


OPENINGS = {
    "it rains": "It rained all day, and {A} and {B} stood under a roof.",
    "school is over": "School was over, and {A} ran out to meet {B}.",
    "a bell rings": "A bell rang three times. {A} looked at {B}.",
    "it is very early": "It was so early that only {A} and {B} were awake.",
    "they are lost": "{A} and {B} did not know the way any more.",
    "it gets dark": "It got dark, and {A} took {B} by the hand.",
    "they are bored": "{A} was bored, and {B} was bored too.",
    "snow falls": "Snow fell on the hats of {A} and {B}.",
}

EVENTS = {
    "a {animal} comes": "A {animal} came along and looked at them.",
    "they find a {thing}": "Then they found a {thing} on the ground.",
    "the wind blows": "A strong wind blew and took the hat of {B} away.",
    "a door opens": "Next to them a door opened, but nobody came out.",
    "somebody sings": "Somebody sang a song that {A} knew well.",
    "a letter comes": "A man brought a letter with the name of {A} on it.",
    "{B} falls asleep": "{B} sat down and fell asleep at once.",
    "{A} has an idea": "I have an idea, said {A}, and whispered it.",
    "a light goes on": "Far away a small light went on.",
    "they eat {food}s": "They were hungry and ate some {food}s.",
    "the bridge breaks": "There was a loud noise, and the bridge broke.",
    "{A} tells a joke": "{A} told a joke, and {B} could not stop laughing.",
}

ENDINGS = {
    "all go home": "At last all of them went home and slept well.",
    "nobody knows why": "To this day nobody knows why it happened.",
    "they become friends": "Since that day they are the best of friends.",
    "{A} writes it down": "In the evening {A} wrote it all down in a book.",
    "the stars come out": "Then the stars came out, and it was quiet.",
    "they come back": "They promised to come back soon.",
    "it was a dream": "{A} woke up. It had only been a dream.",
    "they dance": "They danced until they could dance no more.",
}


@family("chat", "plot", """
Write a story with {A} and {B} at the {place}: first {open}, then {event}, \
then {event2}, and in the end {end}.
> {A} and {B} were at the {place}. {opening} {what} {what2} {ending}

Tell me what happened to {A} and {B}. It begins like this: {open}. After that \
{event} and {event2}. It ends like this: {end}.
> This happened to {A} and {B}. {opening} {what} {what2} {ending}

Here is a plot for {A} and {B}: {open} - {event} - {event2} - {end}. Tell it \
as a story.
> {opening} {what} {what2} {ending}

{A} and {B} meet at the {place} and {open}. Go on: {event}. Finish: {end}.
> One day {A} and {B} met at the {place}. {opening} {what} {ending}

Write three sentences about {A} and {B}. 1: {open}. 2: {event}. 3: {event2}.
> 1. {opening}
> 2. {what}
> 3. {what2}

Start a story about {A} and {B} with the end ({end}) and then tell the \
beginning ({open}) and the middle ({event}).
> {ending} But how did it begin? {opening} And then? {what}

Two things happen to {A} and {B} at the {place}: {event}, and {event2}. Make a \
story of it.
> It was a normal day at the {place} for {A} and {B}. {what} But that was not \
all. {what2}

A story for {A}, please, with {B} in it, where {event} before {event2} and \
{end}.
> Here is your story, {A}. {what} {what2} {ending} And {B} was glad.

Write a diary page of {A}: {open}, {event}, {end}. {B} was there too.
> Dear diary, today was a special day. {opening} {what} {ending} Good night!

Report for the {place}: {open}, {event}, {event2}. People: {A} and {B}.
> Report from the {place}.
> People: {A} and {B}
> {opening}
> {what}
> {what2}
""")
def draw_plot(rng):
    """The beats named in the prompt, and the sentence that tells each."""
    opening = rng.choice(sorted(OPENINGS))
    first, second = rng.sample(sorted(EVENTS), 2)
    end = rng.choice(sorted(ENDINGS))
    return {"open": opening, "opening": OPENINGS[opening], "event": first,
            "event2": second, "end": end, "what": EVENTS[first],
            "what2": EVENTS[second], "ending": ENDINGS[end]}  # fmt: skip


@family("chat", "dialogue", """
Write a dialogue between {A} and {B} about a {color} {thing}.
> {A}: Have you seen my {color} {thing}?
> {B}: No. Where did you put it?
> {A}: I left the {thing} on the table.
> {B}: Look, there is something {color} under the chair!
> {A}: That is it. Thank you, {B}!

{A} and {B} want to meet at the {place} on {day}. Write what they say.
> {A}: Do you have time on {day}?
> {B}: Yes, on {day} I am free.
> {A}: Then let us meet at the {place}.
> {B}: Good idea. What shall I bring?
> {A}: Only good shoes. See you at the {place}!

Write a talk in a shop. {A} buys a {thing} for {n} coins.
> Seller: Good morning. What can I do for you?
> {A}: I would like a {thing}, please.
> Seller: This one costs {n} coins.
> {A}: Here are {n} coins.
> Seller: Thank you, {A}. Enjoy your {thing}!

Write a short talk on the phone between {A} and {B}. {B} is ill.
> {A}: Hello {B}, why are you not at school?
> {B}: I am ill and have to stay in bed.
> {A}: I am sorry to hear that. Can I bring you something?
> {B}: A book would be nice.
> {A}: I will come this evening. Get well soon, {B}!

{A} asks {B} the way to the {place}. It is {n} minutes away, near the \
{place2}. Write the dialogue.
> {A}: Excuse me, how do I get to the {place}?
> {B}: Go straight on to the {place2}. Then turn left.
> {A}: To the {place2}, and then left?
> {B}: Yes. After {n} minutes you will see the {place}.
> {A}: Thank you very much!

A {animal} and a {animal2} talk about the weather and about {hobby}. It is \
{weather}. Write it down.
> The {animal}: It is so {weather} today!
> The {animal2}: I like it when it is {weather}.
> The {animal}: Why do you like it?
> The {animal2}: Because then I have time for {hobby}.
> The {animal}: Then I will try {hobby} too.

Write how {A} says sorry to {B} for breaking a {thing}. A new one comes on \
{day}.
> {A}: {B}, I have to tell you something.
> {B}: What is it?
> {A}: I broke your {thing}. I am very sorry.
> {B}: Thank you for telling me. It was only a {thing}.
> {A}: I will buy you a new {thing} on {day}.

An interview: {A} asks the {job} {B}, who gets up at {n}, about the work. \
Write it.
> {A}: You are a {job}. Do you like your work?
> {B}: Yes, I do. A {job} is never bored.
> {A}: When do you get up?
> {B}: At {n} in the morning.
> {A}: That is early! Thank you, {B}.

{A} invites {B} to a party with {food}s on {day}. What do they say?
> {A}: I have a party on {day}. Will you come?
> {B}: I would love to. What is there to eat?
> {A}: There will be {food}s for everybody.
> {B}: {food}s! Then I will come early.
> {A}: I am glad. See you on {day}!

Write a dialogue in the library. {A} looks for a book about {hobby}. There are \
{n}, and the {color} one is best.
> {A}: Good morning. Do you have a book about {hobby}?
> Librarian: Yes, we have {n} books about {hobby}.
> {A}: Which one is good for a beginner?
> Librarian: Take the {color} one. It has many pictures.
> {A}: Thank you, I will take the {color} book.

{A} is {mood} because of a {adj} {animal} at the {place}. {B} asks why. Write \
the talk.
> {B}: You look {mood}, {A}. What happened?
> {A}: I went to the {place} this morning.
> {B}: And what did you see there?
> {A}: A {adj} {animal}! That is why I am {mood}.
> {B}: Next time take me with you to the {place}.

Write a talk between a {job} and a child at the {place}.
> Child: What are you doing here?
> The {job}: I work here at the {place} every day.
> Child: Is it hard to be a {job}?
> The {job}: Sometimes. But I like it.
> Child: When I am big I want to be a {job} too!

{A} cannot find the way home from the {place} and sees a {color} house with a \
{thing}. {B} helps. Write it as a dialogue.
> {A}: I am lost. All streets near the {place} look the same.
> {B}: Do not worry. What do you see?
> {A}: I see a {color} house and a {thing} in the window.
> {B}: I know that house. Stay there, I am coming.
> {A}: Thank you, {B}. I will wait at the {color} house.

Let {A} and {B} plan a trip to the {place} on {day}: {n} hours by train, with \
{food}s and a {thing}.
> {A}: On {day} we could go to the {place}.
> {B}: Yes! How long does it take?
> {A}: About {n} hours by train.
> {B}: Then I will bring {food}s and a {thing}.
> {A}: And I will buy the tickets to the {place}.
""")
def draw_dialogue(rng):
    return {"n": rng.randrange(2, 13)}


@family("chat", "explain", """
Explain to {A}, a {job}, why it rains.
> Here is why it rains, {A}. The sun warms the water in lakes and rivers. A \
part of the water rises into the air. High up it is cold, so small drops form \
and make clouds. When the drops are heavy, they fall down as rain. A {job} \
sees this on many days.

{A} asks: why do we need sleep? Answer in simple words for a {job}.
> Dear {A}, during the day the body works hard. At night it rests and mends \
itself. The head sorts what we have learned. A {job} who sleeps well makes \
fewer mistakes and feels better. So go to bed early.

How does a {thing} get from a shop to the {place}? Explain it to {A}.
> First somebody buys the {thing} in a shop, {A}. Then it is wrapped and put \
into a box. A driver takes the box and looks for the way to the {place}. At \
the {place} the box is opened. Now the {thing} can be used.

Explain how to clean a {color} {thing}.
> To clean a {color} {thing}, take warm water and a soft cloth. Wipe the \
{thing} from top to bottom. Do not press too hard, or the {color} paint may \
come off. Then let it dry in the air. After that the {thing} looks like new.

Why do a {animal} and a {animal2} need water? Explain.
> Every animal needs water, and so do a {animal} and a {animal2}. Water \
carries food through the body. It also keeps the body cool when it is hot. \
Without water a {animal} gets weak after a short time. The same is true for a \
{animal2}.

What is the difference between a {thing} and a {thing2}?
> A {thing} and a {thing2} are two different things. You use a {thing} for one \
job and a {thing2} for another. They do not look the same, and they do not \
feel the same. If you need a {thing}, then a {thing2} will not help you much.

Explain what a {job} does on a {weather} {day}.
> On a {weather} {day} a {job} gets up early. First the {job} looks at the \
sky, because it is {weather}. Then the work begins. There is always something \
to do for a {job}. In the evening the {job} goes home and is glad that {day} \
is over.

{A} wants to know why the days are longer in summer than in winter. {A.She} is \
{n} years old.
> The earth goes around the sun once a year, {A}. It is a little tilted. In \
summer our side leans to the sun, so the sun stays up longer. In winter our \
side leans away. You are {n} years old, so you have been around the sun {n} \
times.

How do I keep {food}s fresh for {n} days?
> To keep {food}s fresh for {n} days, put them in a cool and dark place. Do \
not wash the {food}s before. Look at them every day and take out the bad ones. \
In this way most {food}s stay fresh for {n} days or more.

Why is {hobby} good for a {job}?
> There are three reasons. First, {hobby} makes a {job} happy after work. \
Second, a {job} who likes {hobby} meets new people. Third, {hobby} trains the \
body or the mind. So every {job} should try {hobby} once.

What should {A} do if a {animal} comes into the {place}?
> First of all {A} should stay calm. A {animal} is often more afraid than we \
are. {A} should open a door of the {place} and step aside. Then {A.she} should \
wait quietly until the {animal} finds the way out. If it stays, {A} can call \
for help.

Explain the rules of a game with {n} {thing}s and {m} players.
> This game needs {n} {thing}s and {m} players. Put the {n} {thing}s in the \
middle. Each of the {m} players takes one in turn. Whoever takes the last \
{thing} wins the round. The first player with three rounds wins the game.

Why does {A} put on a coat when it is {weather} at the {place}?
> When it is {weather}, the air at the {place} can be cold. The body of {A} is \
warm and gives heat to the cold air. A coat keeps a layer of warm air around \
the body. So {A} stays warm at the {place}, even when it is {weather}.

What happens to a {food} in the kitchen of a {job}?
> First the {job} washes the {food}. Then the {job} cuts the {food} into small \
parts. Some parts go into a bowl and some into a pot. The pot gets hot, and \
soon the kitchen smells good. At last the {job} puts everything on a plate.

How does a {animal} find food near the {place}? Tell {A}.
> A {animal} has good eyes and a good nose, {A}. Early in the morning it walks \
around the {place}. It looks under leaves and between stones. When the \
{animal} has found something, it eats fast and looks around. Then it hides \
near the {place} again.

How can {A} become a good {job}?
> To become a good {job}, {A} needs time. First {A.she} should watch another \
{job} at work. Then {A.she} should try the easy tasks and ask many questions. \
Mistakes are part of learning. With patience {A} will be a good {job} one day.

Why does a {thing} fall down when {A} lets it go?
> The earth pulls at every thing, {A}, at a {thing} as well as at you. This \
pull is called gravity. While you hold the {thing}, your hand pushes against \
the pull. When you let go, nothing holds the {thing} any more, so it falls to \
the ground.
""")
def draw_explain(rng):
    return {"n": rng.randrange(4, 15), "m": rng.randrange(2, 7)}


@family("chat", "list", """
Make a numbered list of these things: {thing}, {thing2}, {thing3}, {thing4}.
> 1. {thing}
> 2. {thing2}
> 3. {thing3}
> 4. {thing4}

{A} packs for a trip: a {thing}, a {thing2} and a {thing3}. Write a list with \
a dash on each line.
> {A} packs:
> - a {thing}
> - a {thing2}
> - a {thing3}

Write a shopping list for {A}: {n} {food}s, {m} {food2}s and {k} {food3}s.
> Shopping list for {A}:
> - {n} {food}s
> - {m} {food2}s
> - {k} {food3}s

List three things that you can do at the {place} with a {animal}.
> 1. Walk around the {place} with the {animal}.
> 2. Give the {animal} some water near the {place}.
> 3. Take a picture of the {animal} in front of the {place}.

Give {A} five tips for {hobby}.
> Five tips for {A}:
> 1. Start {hobby} with something easy.
> 2. Take your time.
> 3. Look for a friend who likes {hobby}.
> 4. Do a little every day.
> 5. Enjoy {hobby} even when you make mistakes.

Write a plan for {day}: {A} goes to the {place}, then to the {place2}, then to \
the {place3}.
> Plan of {A} for {day}:
> Morning: {place}
> Noon: {place2}
> Evening: {place3}
> At night {A} comes home.

Who has what? {A} has a {thing}, {B} has a {thing2} and {C} has a {thing3}. \
Make a table.
> | name | thing |
> | {A} | {thing} |
> | {B} | {thing2} |
> | {C} | {thing3} |

List the steps for making {food}s with {A}.
> 1. Wash your hands, {A}.
> 2. Get everything that you need for {food}s.
> 3. Mix it in a large bowl.
> 4. Bake the {food}s until they are brown.
> 5. Let them cool and share the {food}s.

Write the animals from last to first: {animal}, {animal2}, {animal3}, {animal4}.
> From last to first: {animal4}, {animal3}, {animal2}, {animal}.

Put a color before each thing. Things: {thing}, {thing2}, {thing3}. Colors: \
{color}, {color2}, {color3}.
> {color} {thing}, {color2} {thing2}, {color3} {thing3}

Which of these are animals? {animal}, {thing}, {animal2}, {thing2}
> The animals are {animal} and {animal2}. The others, {thing} and {thing2}, \
are things.

Sort into food and places: {food}, {place}, {food2}, {place2}, {place3}.
> Food: {food}, {food2}
> Places: {place}, {place2}, {place3}
""")
def draw_chat_list(rng):
    n, m, k = (rng.randrange(2, 13) for _ in range(3))
    return {"n": n, "m": m, "k": k}


@family("chat", "copy", """
Repeat this sentence: {A} {verb} a {adj} {thing} at the {place}.
> {A} {verb} a {adj} {thing} at the {place}.

Write the sentence twice, once with {A} and once with {B}: NAME {verb} the \
{color} {thing} near the {place}.
> {A} {verb} the {color} {thing} near the {place}.
> {B} {verb} the {color} {thing} near the {place}.

Correct the name. It was {B}, not {A}: On {day} {A} {verb} a {adj} {thing} and \
went to the {place}.
> On {day} {B} {verb} a {adj} {thing} and went to the {place}.

Correct the place. It was the {place2}: {A} and {B} met a {job} and a {animal} \
at the {place}.
> {A} and {B} met a {job} and a {animal} at the {place2}.

Add the word "very" before each describing word: a {adj} {thing} and a {adj2} \
{animal} at the {place}
> a very {adj} {thing} and a very {adj2} {animal} at the {place}

Give the first word and the last word of this list: {thing}, {animal}, {food}, \
{place}, {color}
> The first word is {thing} and the last word is {color}.

Take out the third word: {thing}, {animal}, {food}, {place}, {color}
> Without {food} the list is: {thing}, {animal}, {place}, {color}

Put {thing2} between the two words: {thing}, {animal}. Then put {food} at the \
end.
> {thing}, {thing2}, {animal}, {food}

Say this three times: the {adj} {animal} and the {color} {thing}
> The {adj} {animal} and the {color} {thing}.
> The {adj} {animal} and the {color} {thing}.
> The {adj} {animal} and the {color} {thing}.

Copy the text, but use the name {B} instead of {A}: {A} went to the {place} \
with a {thing}. There {A} met a {animal}.
> {B} went to the {place} with a {thing}. There {B} met a {animal}.

Write this as a question: {A} {verb} the {color} {thing} on {day}.
> Is it true that {A} {verb} the {color} {thing} on {day}?

Put this text in quotes and name the speaker {A}: I saw a {adj} {animal} near \
the {place}.
> {A} said: "I saw a {adj} {animal} near the {place}."

Swap the two things: {A} has a {adj} {thing} and {B} has a {adj2} {thing2}.
> {A} has a {adj2} {thing2} and {B} has a {adj} {thing}.

Change the color to {color2}: the {color} {thing} lies next to the {color} \
{thing2} in the {place}.
> The {color2} {thing} lies next to the {color2} {thing2} in the {place}.

Join the sentences with "and": {A} {verb} a {thing}. {B} {verb2} a {thing2}. \
{C} {verb3} a {thing3}.
> {A} {verb} a {thing} and {B} {verb2} a {thing2} and {C} {verb3} a {thing3}.

Split this into three sentences: {A} went to the {place}, {B} stayed at the \
{place2} and {C} slept at the {place3}.
> {A} went to the {place}. {B} stayed at the {place2}. {C} slept at the \
{place3}.

Say the opposite: {A} likes the {adj} {thing}, and {B} likes the {adj2} \
{thing2}.
> {A} does not like the {adj} {thing}, and {B} does not like the {adj2} \
{thing2}.

Make this polite: give me the {color} {thing} and the {adj} {thing2}.
> Could you please give me the {color} {thing} and the {adj} {thing2}? Thank \
you very much.

Write it for tomorrow: today {A} goes to the {place} and buys a {color} \
{thing} for {B}.
> Tomorrow {A} will go to the {place} and will buy a {color} {thing} for {B}.

Tell it as if it was yesterday: {A} walks to the {place}, finds a {thing} and \
shows it to {B}.
> Yesterday {A} walked to the {place}, found a {thing} and showed it to {B}.

Turn "I" into {A}: I have a {adj} {animal} and I like {hobby}. On {day} I go \
to the {place}.
> {A} has a {adj} {animal} and {A} likes {hobby}. On {day} {A} goes to the \
{place}.

Leave out the colors: the {color} {animal} sees a {color2} {thing} and a \
{color3} {thing2} at the {place}.
> The {animal} sees a {thing} and a {thing2} at the {place}.

Fill in the form. {A} is a {job}, lives near the {place} and likes {hobby}.
> Name: {A}
> Job: {job}
> Home: near the {place}
> Likes: {hobby}

Make one sentence from the notes. Who: {A}. What: {verb} a {thing}. Where: \
{place}. When: {day}.
> On {day} {A} {verb} a {thing} at the {place}.

Write notes (who, what, where, when): on {day} {B} {verb} a {adj} {thing} at \
the {place}.
> Who: {B}
> What: {verb} a {adj} {thing}
> Where: {place}
> When: {day}

Every {animal} should become a {animal2}: a {animal} and {A} met a {adj} \
{animal} at the {place}.
> A {animal2} and {A} met a {adj} {animal2} at the {place}.

Echo each word in a new line: {thing} {animal} {color} {place} {food}
> {thing}
> {animal}
> {color}
> {place}
> {food}

Continue the pattern: {thing} {food} {thing} {food} {thing}
> The pattern is {thing} and {food} in turn, so it goes on: {food} {thing} \
{food} {thing} {food}

Write the title in a row of stars: The {adj} {thing} of {A}
> *** The {adj} {thing} of {A} ***

Finish the rhyme game: say "{thing} here, {thing2} there", first for {place}, \
then for {place2}.
> {thing} here, {thing2} there, at the {place} and everywhere.
> {thing} here, {thing2} there, at the {place2} and everywhere.

Put the words in brackets: {adj} {thing} {color} {animal}
> ({adj}) ({thing}) ({color}) ({animal})
""")
def draw_copy(rng):
    return nothing(rng)


@family("chat", "reading", """
{A} {verb} a {color} {thing} at the {place}. {B} {verb2} a {color2} {thing2} \
at the {place2}. Where was {B}?
> The text says that {B} {verb2} a {color2} {thing2} at the {place2}. So {B} \
was at the {place2}.

{A} {verb} a {color} {thing} at the {place}. {B} {verb2} a {color2} {thing2} \
at the {place2}. Which color did the {thing} have?
> The text says that {A} {verb} a {color} {thing}. So the {thing} was {color}.

The {job} {A} lives near the {place}, and the {job2} {B} lives near the \
{place2}. Who lives near the {place}?
> The {job} lives near the {place}, and the {job} is {A}. So it is {A}.

On {day} {A} was {mood}, because the {thing} was broken. On {day2} {A.she} was \
{mood2}. When was {A} {mood2}, and why was {A.she} {mood}?
> {A} was {mood2} on {day2}. {A.She} was {mood} because the {thing} was broken.

{A} likes {hobby}, {B} likes {hobby2} and {C} likes {hobby3}. Who likes \
{hobby2}?
> {A} likes {hobby}, {B} likes {hobby2}. So it is {B} who likes {hobby2}.

{A} likes {hobby}, {B} likes {hobby2} and {C} likes {hobby3}. What does {C} \
like?
> The text says that {C} likes {hobby3}. So the answer is {hobby3}.

On {day} {A} is at the {place}, on {day2} at the {place2} and on {day3} at the \
{place3}. Where is {A} on {day3}?
> The text says: on {day3} at the {place3}. So {A} is at the {place3}.

A {color} {thing}, a {color2} {thing2} and a {color3} {thing3} are in a bag. \
{A} takes the {color} one. What does {A} hold, and what is left?
> The {color} one is the {thing}. So {A} holds the {thing}. The {color2} \
{thing2} and the {color3} {thing3} are left.

{A} gave the {thing} to {B}. {B} gave it to {C}. Who has the {thing} now?
> First {A} had the {thing}. Then {B} got it. {B} gave it to {C}, so now {C} \
has the {thing}.

The {thing} is in the {adj} box, the {thing2} is in the {adj2} box. {A} opens \
the {adj2} box. What does {A.she} find?
> The {adj2} box holds the {thing2}. So {A} finds the {thing2}.

{A} is taller than {B}. {B} is taller than {C}. Who is the tallest and who is \
the smallest?
> {A} is taller than {B}, and {B} is taller than {C}. So {A} is the tallest \
and {C} is the smallest.

A {animal} costs {n} coins and a {animal2} costs {m} coins. {A} buys the \
{animal2}. What does {A} pay?
> {A} buys the {animal2}. The text says that it costs {m} coins. So {A} pays \
{m} coins.

{A} goes to the {place} before the {place2}, and to the {place3} after the \
{place2}. In which order does {A.she} go?
> The {place} comes before the {place2}, and the {place3} comes after it. The \
order is {place}, {place2}, {place3}.

True or false? {A} has a {animal}, {B} has a {animal2}. Claim: {B} has a \
{animal}.
> {B} has a {animal2}, not a {animal}. It is {A} who has a {animal}. So the \
claim is false.

Yes or no? The {place} is open on {day} and {day2}. {A} comes on {day2}. Can \
{A.she} go in?
> {A} comes on {day2}. The {place} is open on {day} and on {day2}. So the \
answer is yes.

Sum up in one sentence: {A} wanted to buy a {thing}. At the {place} there was \
none. So {A.she} bought a {food} and went home.
> {A} found no {thing} at the {place} and bought a {food} instead.
""")
def draw_reading(rng):
    n, m = rng.sample(range(2, 100), 2)
    return {"n": n, "m": m}


@family("chat", "letter", """
Write a short letter from {A} to {B}. {A} is at the {place} and likes {hobby}.
> Dear {B},
> I am at the {place} and have a good time. Every day there is time for \
{hobby}. The people here are kind and the food is good. I hope that you are \
well. Next time we should go to the {place} together.
> Yours, {A}

Invite {B} to a party at the {place} on {day} at {n}. I am {A}.
> Dear {B},
> I would like to invite you to my party. It is on {day} at {n}, at the \
{place}. There will be music and good food. Please tell me if you can come.
> See you soon, {A}

{A} thanks {B} for a {adj} {thing}. Write the note.
> Dear {B},
> thank you so much for the {adj} {thing}. I had wanted a {thing} for a long \
time. I use it every day and think of you.
> Best wishes, {A}

Write a note: {A} cannot come to the {place} on {day} because of {hobby}.
> Dear friends,
> I am sorry, but I cannot come to the {place} on {day}. I have {hobby} at the \
same time. I hope that you have a nice day at the {place}, and I will come \
next time.
> Yours, {A}

Write a sign for the {place}: open from {n} to {m}, no {animal}s.
> Welcome to the {place}!
> We are open from {n} to {m}.
> Please leave your {animal}s at home.
> Thank you and enjoy the {place}.

Write an ad: {A} sells a {color} {thing} for {m} coins.
> For sale: one {color} {thing}, nearly new.
> The {thing} costs only {m} coins.
> If you want it, please ask for {A}.

Write a postcard from the {place}. It is {weather}. From {A} to {B}.
> Hello {B},
> greetings from the {place}! It is {weather} today, but that is fine. In the \
morning we walked around, and in the evening we sat by the fire. I will bring \
you a small stone.
> Your {A}

{A} found a {color} {thing} near the {place}. Write a note for the owner.
> Found!
> I found a {color} {thing} near the {place}. Is it yours? Then please come to \
me and tell me what it looks like. I keep the {thing} safe until then.
> {A}

Introduce {A}, a {job} who likes {hobby} and has a {animal}.
> This is {A}. {A.She} works as a {job}. In {A.her} free time {A} likes \
{hobby}. At home a {animal} waits for {A.him}. If you want to know more about \
the work of a {job}, just ask {A}.

Describe a {adj} {color} {thing} in the {place}.
> In the {place} there is a {thing}. It is {adj} and {color}. In the morning \
the light falls on the {color} side, and people stop to look. Nobody knows who \
put the {adj} {thing} there, but the {place} would not be the same without it.
""")
def draw_letter(rng):
    n, m = sorted(rng.sample(range(2, 13), 2))
    return {"n": n, "m": m}
