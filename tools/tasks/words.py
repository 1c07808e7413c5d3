"""Word lists that the task generators draw from.

Every word is short and lower case (names are capitalised), so that the tokenizer gives each of them one
token of its own when it follows a space.
"""

ADJECTIVES = """amber azure black blue brave bright broad brown calm clean clear cold cool crisp dark deep dim dry
dusty early faint fair fast fine firm flat fresh gold grand gray great green happy hard heavy high hollow huge icy
iron jolly keen kind large late lean light little lone long loud low lucky mild narrow neat new noble odd old pale
plain prime proud pure quick quiet rapid rare red rich ripe rough round royal rusty sharp shy silent silver simple
slow small smart smooth soft solid steep still stone strong sunny sweet swift tall thick thin tidy tiny warm west
white wide wild wise young""".split()

NOUNS = """acorn anchor angel ant apple arch arrow badger barn bay beacon bear bell bench bird boat bolt bridge
brook cabin camel canyon castle cat cedar chain chest city cliff cloud clover coast coral crane creek crow crown
dawn deer desert dog door dove dragon drum duck eagle echo elk elm engine falcon farm fern field finch fire fish
flame flute forest forge fox frog garden gate goat goose grove harbor hare hawk heron hill hive horse house island
jay jewel kite lake lamp lantern leaf lemon lily lion lizard lodge maple market meadow mill mint mirror mole moon
moose moth mouse nest north oak ocean olive orchid otter owl palace panda park path peach pearl pebble pigeon pine
plum pond pony port prairie quail rabbit raven reef ridge river robin rocket rose sail salmon seal shadow sheep ship
shore sky sloth snail snake snow south spark spider spring spruce squid star stork storm stream summit swan temple
thorn tiger tower trail tree trout tulip turtle valley village violet wagon walnut water wave whale wheel willow wind
winter wolf wood wren yard zebra""".split()

OBJECTS = """apples balls beads books boxes buttons cakes candles cards carrots coins cookies crayons cups dolls eggs
flowers grapes hats keys lemons marbles muffins nuts oranges pears pencils pens photos plates plums rings rocks seeds
shells spoons stamps stickers stones toys""".split()

CONTAINERS = "bags boxes packs jars baskets bundles".split()

NAMES = """Adam Alice Anna Ben Bob Carl Clara Dan David Diana Ella Emma Eric Eva Finn Frank Grace Hana Henry Ian Iris
Jack Jane John Julia Kate Kim Laura Leo Liam Lily Lucy Maria Mark Mary Max Mia Nina Noah Nora Olga Omar Paul Peter
Rosa Ruth Sam Sara Tom Vera""".split()

# What a list to copy is drawn from: each word at most once in a list.
COPY_WORDS = sorted(set(ADJECTIVES) | set(NOUNS) | set(OBJECTS) | {n.lower() for n in NAMES})

assert len(set(ADJECTIVES)) == len(ADJECTIVES)
assert len(set(NOUNS)) == len(NOUNS)
assert len(COPY_WORDS) >= 320
