#!/usr/bin/env python3
"""Writes tests/data/templates/expected.json: jinja2's output in the environment that transformers sets up.

Needs jinja2. The templates (*.jinja) are in tests/data/templates; the snippets and the conversations are here. Where jinja2 fails
the result is {"error": message}.

    python3 tools/make_template_fixtures.py
"""

import copy
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data/templates"
NOW = datetime.datetime(2024, 7, 26, 9, 5, 3)


class Generation(jinja2.ext.Extension):
    """{% generation %} marks the assistant's text for training masks; rendering leaves it unchanged."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("passed"), [], [], body).set_lineno(line)

    def passed(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def render(source, variables):
    try:
        # A copy: some of Python's operators change a list in place.
        return environment().from_string(source).render(**copy.deepcopy(variables))
    except Exception as e:  # whatever jinja2 and Python raise is an error here
        return {"error": f"{type(e).__name__}: {e}"}


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place.\nToday's.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Ort, z. B. \"Köln\" <b>&amp;</b> '東京'"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "unit": {"enum": ["°C", "°F"], "type": "string"},
        "near": {"type": "object", "properties": {"lat": {"type": "number"}, "exact": {"type": "boolean"}}}},
        "required": ["place"]}}}
CLOCK = {"type": "function", "function": {"name": "now", "description": "", "return": {"type": "string"},
                                          "parameters": {"type": "object", "properties": {}}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, call_id="abc123XYZ"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = {"role": "system", "content": "  You are terse.\n"}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CONVERSATIONS = {
    "one": {"messages": [user("Hello")], "add_generation_prompt": True},
    "spaces": {"messages": [SYSTEM, user(" \t Zwei\u3000Zeilen\n\n\u00a0")], "add_generation_prompt": True},
    "turns": {"messages": [SYSTEM, user("1+1?"), assistant("<think>\nEasy.\n</think>\n\n2"), user("And <b>\"2+2\"</b>?")],
              "add_generation_prompt": True, "enable_thinking": False, "thinking": True},
    "no_prompt": {"messages": [user("Hi"), assistant("Hello! 👋🏽"), user("Tschüß"), assistant("Bye.", prefix=True)],
                  "add_generation_prompt": False, "thinking": True},
    "reasoning": {"messages": [user("Why?"), assistant("Because.", reasoning_content="\nLong thought.\n")],
                  "add_generation_prompt": False, "enable_thinking": True},
    "tools": {"messages": [user("Weather?")], "tools": [WEATHER, CLOCK], "add_generation_prompt": True},
    "tools_system": {"messages": [SYSTEM, user("Wetter in Köln?")], "tools": [WEATHER], "add_generation_prompt": True,
                     "tools_in_user_message": False, "enable_thinking": False},
    "tool_calls": {"messages": [user("Weather?"),
                                assistant(None, tool_calls=[call("get_weather", {"place": "Köln", "days": [1, 2.5, None, True]})]),
                                {"role": "tool", "content": "{\"t\": 21}", "tool_call_id": "abc123XYZ"},
                                assistant("21 degrees."), user("Thanks")],
                   "tools": [WEATHER, CLOCK], "add_generation_prompt": True},
    "two_calls": {"messages": [user("Weather?"),
                               assistant("Let me look.", tool_calls=[call("now", "{}"), call("get_weather", {"place": "x"}, "short")]),
                               {"role": "tool", "content": "12:00", "tool_call_id": "1"},
                               {"role": "tool", "content": "sunny", "tool_call_id": "2"}],
                  "add_generation_prompt": True},
    "builtin": {"messages": [user("Search."), assistant("", tool_calls=[call("brave_search", {"query": "a \"b\"", "n": 3})]),
                             {"role": "ipython", "content": {"hits": [1, 2]}}],
                "builtin_tools": ["brave_search", "code_interpreter"], "tools": None, "add_generation_prompt": True},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "image"},
                                                        {"type": "text", "text": " this?"}]}],
              "add_generation_prompt": True},
    "two_users": {"messages": [user("a"), user("b")], "add_generation_prompt": True},
    "unknown_role": {"messages": [user("a"), {"role": "critic", "content": "b"}], "add_generation_prompt": True},
    "system_only": {"messages": [SYSTEM], "tools": [CLOCK], "add_generation_prompt": True},
    "empty": {"messages": [], "add_generation_prompt": True},
}

VARIABLES = {"s": "Hello, Wörld", "n": 7, "x": 2.5, "t": True, "f": False, "nothing": None, "l": [3, 1, 2], "e": [],
             "d": {"b": 1, "a": [1, {"k": "v"}], "items": "key", "C": None}, "text": "  a b\tc\n",
             "people": [{"name": "bob", "age": 5, "tag": {"k": "x"}}, {"name": "Al", "age": 7, "tag": {"k": "y"}},
                        {"name": "cy", "age": 5, "ok": True}]}

SNIPPETS = r"""
plain text
{{ s }} {{ n }} {{ x }} {{ t }} {{ nothing }} {{ l }} {{ d }} {{ missing }}|
{{ (1,) }} {{ () }} {{ (1, 'a') }} {{ 1, 2 }} {{ [] }} {{ {} }} {{ {'a': 1, 2: 'b', none: 1.0} }}
{{ missing.attr }}
{{ d.missing }}|{{ d['missing'] }}|{{ l[9] }}|{{ s.foo }}|{{ nothing.x }}|{{ n.x }}|{{ n[0] }}
{{ d.missing.more }}
{{ missing() }}
{{ missing + 1 }}
{{ missing ~ 'a' ~ 1 ~ none ~ 2.0 }}
{{ missing == other }} {{ missing == none }} {{ 'a' in missing }} {{ missing | length }} {{ not missing }}
{{ [missing] }} {{ [missing, none] | join('-') }}
{{ missing < 1 }}
{{ missing | tojson }}
{{ d['items'] }} {{ d.items() | list }} {{ d | items | list }} {{ d.keys() | list }} {{ d.values() | list }}
{{ d.get('b') }} {{ d.get('z') }} {{ d.get('z', 4) }} {{ d.a[1].k }} {{ d['a'][1]['k'] }} {{ d.a.1.k }}
{{ 1 + 2 }} {{ 7 / 2 }} {{ 6 / 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }}
{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 1e16 }} {{ 1e15 }} {{ 1.5e-5 }} {{ 0.0001 }} {{ 123456789.123 }} {{ 1e300 * 1e10 }}
{{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 2 * 3 + 4 * 5 }} {{ (2 + 3) * 4 }} {{ 10 - 2 - 3 }} {{ - - 3 }} {{ +3 }}
{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1_0.2_5 }} {{ 1e3 }} {{ 00 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ t + 1 }} {{ t == 1 }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ [1] == [1.0] }} {{ (1,) == [1] }} {{ {'a': 1} == {'a': 1} }}
{{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1, 2] * 2 }} {{ 'a' * -1 }}| {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'a' + 'b' }}
{{ 'a' + 1 }}
{{ [1] + (2,) }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 <= 1 }} {{ 2 >= 3 }} {{ 'a' < 'b' }} {{ 'B' < 'a' }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }}
{{ 'a' < 1 }}
{{ 1 and 2 }} {{ 0 and 2 }} {{ 0 or 'x' }} {{ '' or none }} {{ not 1 }} {{ not 0 and 1 }} {{ not (0 or 1) }}
{{ 1 in [1, 2] }} {{ 3 not in [1, 2] }} {{ 'ell' in s }} {{ 'b' in d }} {{ 'zz' in d }} {{ not 1 in [1] }}
{{ 1 in 'a1' }}
{{ 1 in 5 }}
{{ 'yes' if t else 'no' }} {{ 'yes' if f else 'no' }} {{ 'yes' if f }}| {{ 1 if f else 2 if f else 3 }} {{ ('a' if t else 'b') ~ 'c' }}
{{ s[0] }}{{ s[-1] }}{{ s[7:9] }} {{ s[::-1] }} {{ s[:-3] }} {{ s[100:] }}| {{ s[-100:3] }} {{ l[::-1] }} {{ l[1:] }} {{ l[:1] }} {{ l[-2:] }}
{{ l[::2] }} {{ l[2:0:-1] }} {{ l[none:none] }} {{ (1, 2, 3)[1:] }} {{ 'abc'[::-2] }} {{ 'äöü'[1:] }} {{ l[5:1:-1] }}
{{ d[1:] }}
{{ l[::0] }}
{{ n[1:] }}
{{ missing | dictsort }}
{{ nothing | map('upper') | join('-') }}|{{ f | selectattr('age') | list }}|{{ 0 | reject | list }}
{{ 'a\n\t\\\'\"\x41\u00e4\U0001F600\q\101' }} {{ "it's" }} {{ 'a' 'b' "c" }}
{{ ['it\'s', "say \"x\"", 'both \' "', 'tab\t nl\n', 'äß 👋', '\u200b\xa0\x01', '\\'] }}
{{ [1.0, 1e20, -0.0, true, none, (1,), {'a': 'b'}] }}
{% if n > 5 %}big{% elif n > 2 %}mid{% else %}small{% endif %}
{% if f %}1{% elif nothing %}2{% elif e %}3{% else %}4{% endif %}
{% for i in l %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}
{% for i in e %}{{ i }}{% else %}none{% endfor %}
{% for i in missing %}{{ i }}{% else %}none{% endfor %}
{% for k in d %}{{ k }} {% endfor %}{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for c in 'äb' %}[{{ c }}]{% endfor %}
{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }} {% endfor %}
{% for i in l if i > 1 %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% else %}x{% endfor %}
{% for i in l if i > 9 %}{{ i }}{% else %}x{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for a in [1, 2] %}{% for b in [1, 2, 3] %}{% if b == 2 %}{% break %}{% endif %}{{ a }}{{ b }}{{ loop.index }} {% endfor %}{{ loop.index }}{% endfor %}
{% for a, b in [(1, 2), [3, 4]] %}{{ a }}-{{ b }} {% endfor %}{% for (a, b) in [(1, 2)] %}{{ a + b }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}
{% for i in 5 %}{{ i }}{% endfor %}
{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for i in 1, 2, 3 %}{{ i }}{% endfor %}{% for i in range(5, 0, -2) %}{{ i }}{% endfor %}
{% set y = 0 %}{% for i in l %}{% set y = y + i %}{{ y }} {% endfor %}{{ y }}
{% set ns = namespace(y=0) %}{% for i in l %}{% set ns.y = ns.y + i %}{% endfor %}{{ ns.y }} {{ ns.z }}|{{ ns['y'] }}
{% set q = 1 %}{% set q.y = 2 %}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a + ns.b }}{% set ns.c = 'new' %}{{ ns.c }} {{ ns }}
{% if t %}{% set z = 5 %}{% endif %}{{ z }} {% for i in [1] %}{% set w = 1 %}{% endfor %}{{ w is defined }}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set (c, e2) = [3, 4] %}{{ c }}{{ e2 }} {% set p = 1, 2 %}{{ p }}
{% set block %}  in {{ n }} {% endset %}[{{ block }}]{% set up | upper | trim %} abc {% endset %}[{{ up }}]
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(1, c='z') }} {{ m(b=1, a=2) }} {{ m() }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}
{% macro fact(k) %}{{ 1 if k < 2 else k * fact(k - 1) | int }}{% endmacro %}{{ fact(5) }}
{% macro m() %}{{ later }}{{ n }}{% endmacro %}{% set later = 'L' %}{{ m() }}{% set later = 'M' %}{{ m() }}
{% macro m() %}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}
{% macro wrap(tag) %}<{{ tag }}>{{ caller() }}</{{ tag }}>{% endmacro %}{% call wrap('b') %}in {{ n }}{% endcall %}
{% macro each(xs) %}{% for i in xs %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) each(l) %}<{{ i }}>{% endcall %}
{{ 'a' | safe + '<b>' + "'\"&" }} {{ '<' + ('>' | safe) }} {{ '<' | safe ~ '>' }} {{ ('<' | safe) + ('>' | safe) }} {{ '<' | safe }} {{ '<' ~ '&' | safe + '&' }}
{% set m = d | tojson | safe %}{{ m }} {{ '<' ~ m }} {{ m + '<' }} {{ [m[:4]] }} {{ m[2] + '"' }} {{ m[0] * 2 + '<' }} {{ 2 * m[0] + '<' }} {{ m | length }} {{ m == d | tojson }} {{ m in [m] }} {{ m is string }} {{ [m] | tojson }}
{% set m = ' a<b ' | safe %}{{ m | trim + '<' }} {{ m | upper + '<' }} {{ m | lower + '<' }} {{ m | capitalize + '<' }} {{ m | title + '<' }} {{ m | replace('a', '&') + '<' }} {{ m | indent + '<' }} {{ m | string + '<' }} {{ m | reverse + '<' }} {{ m | first + '<' }} {{ m | last + '<' }} {{ m | default('') + '<' }} {{ [m, 'x'] | join('&') + '<' }} {{ m | list | first + '<' }} {{ [m] | map('trim') | first + '<' }}
{% set m = ' a<b ' | safe %}{{ m.strip() + '<' }} {{ m.lstrip(' ') + '<' }} {{ m.upper() + '<' }} {{ m.title() + '<' }} {{ m.removeprefix(' ') + '<' }} {{ m.startswith(' ') }} {{ m.find('<') + 1 }} {{ ','.join([m, m]) + '<' }} {{ 'x'.replace('x', m) + '<' }} {{ d | safe + '<' }}
{% set m = none | safe %}{{ m + '<' }} {{ m is none }} {% set q | safe %}&{% endset %}{{ q + '&' }} {% set r %}{{ m }}{% endset %}{{ r + '<' }}
{{ 1 + ('a' | safe) }}
{% filter upper %}a{{ s }}{% set z = 1 %}{{ z }}{% endfilter %}{{ z is defined }} {% filter trim | replace('b', 'c') | indent(1, true) %}  abc {% endfilter %}|
{% for i in l %}{% filter trim %} {{ i }}{% if loop.first %}!{% endif %} {% endfilter %}{% endfor %} {% filter replace('B', 'x') %}{% filter upper %}ab{% endfilter %}{% endfilter %}
{% filter length %}ab{% endfilter %}
{% filter nofilter %}x{% endfilter %}
{% filter trim %}x
{% filter %}x{% endfilter %}
{% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% generation %}kept {{ n }}{% endgeneration %}
{{ 'a' }}{# comment {{ n }} #}b{#- c -#} d
{% raw %}{{ not }} {% this %}{% endraw %} {%- raw -%}  x  {%- endraw -%}  y
{{ raise_exception('bad ' ~ n) }}
{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S %A %B %j') }} {{ strftime_now is defined }}{{ strftime_now('') }}
{{ text | trim }}|{{ 'xxaxx' | trim('x') }}|{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ 'xyaxy'.strip('yx') }}|{{ 'éaé'.strip('é') }}
{{ '\u3000a\u00a0\u2003'.strip() }}|{{ '\u200ba'.strip() }}|{{ none | trim }}|{{ missing | trim }}|{{ 5 | trim }}
{{ s | length }} {{ l | count }} {{ d | length }} {{ '👋🏽' | length }}
{{ n | length }}
{{ s | upper }} {{ s | lower }} {{ 'hello wORLD-foo (bar' | title }} {{ 'hELLO wORLD' | capitalize }} {{ "they're bill's" | title }}
{{ s.upper() }} {{ s.lower() }} {{ "they're bill's 3rd" .title() }} {{ 'hELLO'.capitalize() }} {{ 'straße ÄÖÜ éà ǆ ŉ'.upper() }} {{ 'ÀÉÎ İ Ω'.lower() }} {{ 'ǆx ßa éa'.title() }}
{{ l | first }} {{ l | last }} {{ e | first }}| {{ 'abc' | first }} {{ d | first }} {{ e | last }}|
{{ l | join }} {{ l | join(', ') }} {{ people | join('/', attribute='name') }} {{ 'abc' | join('-') }} {{ [1, none, 'x', 2.0] | join(' ') }}
{{ missing | default('D') }} {{ '' | default('D') }} {{ '' | default('D', true) }} {{ nothing | d('D') }} {{ nothing | d('D', boolean=true) }} {{ missing | default }}|
{{ 'aXbXc' | replace('X', '-') }} {{ 'aXbXc' | replace('X', '-', 1) }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.replace('', '.') }} {{ 'x1' | replace(1, 2) }}
{{ 'abc' | list }} {{ d | list }} {{ (1, 2) | list }} {{ missing | list }} {{ range(3) | list }}
{{ d | dictsort }} {{ {'b': 1, 'A': 3, 'c': 2} | dictsort(by='value') }} {{ {'b': 1, 'A': 3} | dictsort(true) }} {{ {'b': 1, 'a': 2} | dictsort(reverse=true) }}
{{ people | map(attribute='name') | list }} {{ people | map(attribute='tag.k', default='?') | list }} {{ l | map('string') | list }} {{ ['a', 'b'] | map('upper') | join }} {{ ['a1', 'b1'] | map('replace', '1', '2') | list }}
{{ people | map(attribute='ok') | list }}
{{ [0, 1, '', 'a', none] | select | list }} {{ [0, 1, 2] | reject | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2, 3] | reject('odd') | list }} {{ [1, 2, 3] | select('gt', 1) | list }} {{ [1, 2, 3] | reject('equalto', 2) | list }}
{{ people | selectattr('ok') | map(attribute='name') | list }} {{ people | selectattr('age', 'equalto', 5) | map(attribute='name') | list }} {{ people | rejectattr('age', 'gt', 5) | list | length }} {{ people | rejectattr('ok') | list | length }} {{ people | selectattr('ok', 'defined') | list | length }}
{{ people | selectattr('tag.k', '==', 'x') | list | length }}
{{ people[:2] | selectattr('tag.k', '==', 'x') | list | length }}
{{ l | string }} {{ '42' | int }} {{ '4.7' | int }} {{ 'x' | int }} {{ 'x' | int(9) }} {{ 4.9 | int }} {{ -4.9 | int }} {{ none | int }} {{ '0x1f' | int(base=16) }} {{ ' 5 ' | int }} {{ true | int }} {{ '1_0' | int }}
{{ '1.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ '1e3' | float }} {{ 'x' | float(1.5) }} {{ 'inf' | float }} {{ 'nan' | float }} {{ '-2' | float }}
{{ -5 | abs }} {{ -2.5 | abs }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42.55 | round(1, 'floor') }} {{ 42.51 | round(1, 'ceil') }} {{ 5 | round }} {{ 2.4 | round(method='ceil') | int }} {{ 1.005 | round(2) }}
{{ d | tojson }} {{ l | tojson }} {{ 'ä"\\\n\x01\x7f/<b>' | tojson }} {{ none | tojson }} {{ 1.0 | tojson }} {{ true | tojson }} {{ (1, 2) | tojson }} {{ {} | tojson }} {{ 1e20 | tojson }}
{{ d | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {'b': [], 'a': {}} | tojson(indent=1, sort_keys=true) }} {{ {'a': 1, 'b': 2} | tojson(separators=(',', ':')) }} {{ 'ä👋' | tojson(ensure_ascii=true) }}
{{ d | tojson(indent='\t') }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}
{{ 'a\nb\n\nc' | indent }}| {{ 'a\nb' | indent(2, true) }}| {{ 'a\n\nb' | indent(1, blank=true) }}| {{ 'a\nb\n' | indent('> ') }}|
{{ [1, 2, 1, 'a', 'A'] | unique | list }} {{ ['a', 'A'] | unique(true) | list }} {{ people | unique(attribute='age') | map(attribute='name') | list }}
{{ l | sort }} {{ l | sort(reverse=true) }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A', 'c'] | sort(case_sensitive=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ people | sort(attribute='age,name') | map(attribute='name') | list }} {{ people | sort(true, attribute='age') | map(attribute='name') | list }}
{{ [1, 'a'] | sort }}
{{ l | reverse | list }} {{ 'abc' | reverse }} {{ l | sum }} {{ people | sum(attribute='age') }} {{ l | sum(start=10) }} {{ l | min }} {{ l | max }} {{ people | max(attribute='age') | tojson }} {{ e | max }}| {{ ['b', 'A'] | min }}
{{ d | attr('items') is defined }} {{ d | attr('b') }}| {{ 'x' | safe }}
{{ s.startswith('He') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.find('W') }} {{ s.find('zz') }} {{ s.find('l', 3) }} {{ s.find('l', 4) }} {{ s.rfind('l') }} {{ s.index('W') }} {{ s.count('l') }} {{ 'äöü'.find('ü') }}
{{ s.index('zz') }}
{{ 'a,b,,c'.split(',') }} {{ 'a,b,,c'.split(',', 1) }} {{ ' a  b '.split() }} {{ ' a  b c'.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a<t>b'.split('<t>')[-1] }} {{ 'a b c'.split(maxsplit=1) }}
{{ 'a'.split('') }}
{{ 'a\nb\r\nc\x0bd\u2028e\n'.splitlines() }} {{ ', '.join(['a', 'b']) }} {{ 'k=v=w'.partition('=') }} {{ 'k=v=w'.rpartition('=') }} {{ 'kv'.partition('=') }} {{ 'prefix-a'.removeprefix('prefix-') }} {{ 'a.txt'.removesuffix('.txt') }}
{{ ','.join([1, 2]) }}
{{ '123'.isdigit() }} {{ 'a1'.isdigit() }} {{ 'abc'.isalpha() }} {{ ' \n'.isspace() }} {{ ''.isdigit() }} {{ 'ABC'.isupper() }} {{ 'aBc'.islower() }} {{ 'a1'.islower() }} {{ '1'.isupper() }}
{{ l.index(1) }} {{ l.count(1) }} {{ (1, 2).index(2) }}
{{ l.append(4) }}
{{ d.update({'x': 1}) }}
{{ missing is defined }} {{ n is defined }} {{ missing is undefined }} {{ nothing is none }} {{ nothing is defined }} {{ n is not none }} {{ d.zz is defined }} {{ d.zz is none }}
{{ s is string }} {{ n is number }} {{ x is number }} {{ t is number }} {{ n is integer }} {{ t is integer }} {{ x is float }} {{ t is boolean }} {{ n is boolean }} {{ t is true }} {{ f is false }} {{ n is true }}
{{ d is mapping }} {{ l is mapping }} {{ l is iterable }} {{ s is iterable }} {{ d is iterable }} {{ n is iterable }} {{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ n is sequence }} {{ missing is iterable }} {{ missing is sequence }} {{ nothing is iterable }} {{ missing is mapping }} {{ missing is string }}
{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is ge(2) }} {{ 1 is in [1, 2] }} {{ 'a' is equalto 'a' }} {{ 1 is sameas true }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ 'é' is lower }}
{{ s is string and n is number or f }} {{ 'a' if s is string else 'b' }} {{ not s is string }} {{ s is not string }} {{ n is divisibleby 7 and t }}
{{ range is callable }} {{ s is callable }} {{ s.upper is callable }}
{{ dict(a=1, b='x') }} {{ dict({'q': 1}, b=2) | tojson }} {{ range(0) | list }} {{ range(2, 8, 3) | list }}
{{ {'a': {'b': {}}} }} {{ {'a': {'b': {}}}.a.b }} {{ {'k': [1, {'z': (1, 2)}]}['k'][1]['z'][0] }}
{{ l | map('abs') | map('string') | join(',') | upper | length }} {{ (l | sort)[0] }} {{ (l | first) + 1 }} {{ -n | abs }} {{ 'a' ~ n | string }}
a {% if t %} b {% endif %} c
x {{- n -}} y
{{ '%}' }} {{ '{{' }} {% if '%}' == '%}' %}ok{% endif %} {{ {'a': {'b': 1}}['a'] }} {{ "}}" }}
{ { % # }} %} #} {
{% set ns2 = namespace(x=[]) %}{% set ns2.x = ns2.x + [1] %}{% set ns2.x = ns2.x + ['b'] %}{{ ns2.x }}
{% for m in people %}{% set name = m.name %}{% if loop.first %}{% set name = name | upper %}{% endif %}{{ name }}{{ ' ' if not loop.last }}{% endfor %}
{% for i in l %}{% if loop.previtem is defined and loop.previtem > i %}<{% endif %}{{ i }}{% endfor %}
{{ people[0].tag['k'] }} {{ people[-1]['ok'] }} {{ people[0:2] | map(attribute='name') | join('+') }} {{ (people | last).name }}
{% endif %}
{% if t %}
{% unknown %}
{% for i in l %}{% endfor
{{ n
{{ n | nofilter }}
{{ n is notest }}
{{ 'open }}
{{ (1 }}
{{ 1 2 }}
{{ }}
{% set %}
{% break %}
{{ [1, 2 }}
{# open
{% raw %} open
{{ n.real.x.y }}
{{ 'a' is 'b' }}
{{ 5 | join }}
{{ none + 'a' }}
{{ -'a' }}
{{ l.foo() }}
{{ n() }}
{{ 'x' | int(base=8) }} {{ 'ab' | upper() | lower() }} {{ [] | sum }} {{ [[1], [2]] | sum(start=[]) }}
{% for k, v in people[0] | items %}{{ k }}:{{ v }} {% endfor %}{% for k, v in people[0] | dictsort %}{{ k }} {% endfor %}
{{ true }} {{ True }} {{ none }} {{ None }} {{ false and missing.x }} {{ true or missing.x }}
{{ loop }}
{% set l = [1] %}{% for l in l %}{{ l }}{% endfor %}{{ l }}
{{ 9007199254740993 }} {{ 0.1 + 0.2 }} {{ 1/3 }} {{ 100 / 10 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 3.0 ** 2 }} {{ 10.0 // 3 }} {{ 7 // 2.0 }}
{{ [1,2,3,] }} {{ {'a':1,} }} {{ (1,2,) }} {{ range(3,) | list }}
{{ 'A' < 'a' }} {{ 'ä' > 'z' }} {{ '😀' > '\uffff' }} {{ [] < [1] }} {{ (1, 'a') < (1, 'b') }} {{ true < 2 }}
"""

# Snippets of several lines.
WHOLE = [
    "  {% if t %}\n   x\n  {% endif %}\ny",
    "a\n    {%- if t %}\n\n  b\n    {%- endif -%}\n\n c",
    "    {%+ if t %}x{% endif %}\n  {{ n }}\n   {# gone #}\nz\n",
    "{% if t +%}\nx\n{% endif %}\n",
    "\t{% for i in l %}\n\t- {{ i }}\n\t{% endfor %}\nend\n\n",
    "{%- for i in l -%}\n  {{ i }} ,\n{%- endfor %}\n\nx\n",
    "{{ 1\n + 2 }}\r\nline\rnext\r\n",
    "{{ 'a\\\nb' }} {{ 'multi\nline' }}",
    "{% if t %}\n\n  {% set q = 1 %}\n  {%- set r = 2 %}\n  {{ q }}{{ r }}\n{% endif %}\n{#- c -#}\n  z",
    "x\n   {% raw %}\n  {{ a }}\n  {% endraw %}\n  y",
    "{%- macro m(a) %}\n  [{{ a }}]\n{%- endmacro %}\n{{ m(1) }}\n{{- m(2) }}\n",
    "\u3000{% if t %}\u3000x\u00a0{%- endif %}\n\u00a0{% if t %}y{% endif %}",
    "",
    "\n",
    "\n\n",
    "   ",
    "{% set a %}\n one\n{% endset %}\n[{{ a }}]",
    "{% if t %}a{% endif %}\n{% if t %}b{% endif %}\n\n{{ n }}\n\n{{ n }}",
    "{# a\n b #}\n{#+ c +#}\n  {#- d #}\nx",
    "{{ n }}\n{% for i in l %}{{ i }}\n{% endfor %}x{% for i in l %}\n{{ i }}{% endfor %}",
    "{%if t%}tight{%endif%}{{n}}{%-if t-%} x {%-endif-%} y",
]


def main():
    sources = {p.stem: p.read_text() for p in sorted(DATA.glob("*.jinja"))}
    snippets = SNIPPETS.strip("\n").split("\n") + WHOLE
    out = {
        "variables": VARIABLES,
        "conversations": {k: {**SPECIAL, **v} for k, v in CONVERSATIONS.items()},
        "snippets": [[s, render(s, VARIABLES)] for s in snippets],
        "templates": {name: {c: render(source, {**SPECIAL, **v}) for c, v in CONVERSATIONS.items()}
                      for name, source in sources.items()},
    }
    (DATA / "expected.json").write_text(json.dumps(out, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
