"""Small templates, one for each construct in which another engine could differ from jinja2."""

VALUES = {
    "s": "  Hello, Wörld  ",
    "name": "get_weather",
    "zh": "床前明月光",
    "empty": "",
    "lines": "a\nb\r\nc\rd\x0be\u2028f\n",
    "odd": "\x1c x \x85\u00a0\u3000\u200b",
    "n": 7,
    "neg": -3,
    "f": 2.5,
    "fs": [1.0, 1e16, 1e15, 123456789.123, 1e-4, 1e-5, 1.5e300, 0.1, -0.0, 1e22, 5e-324],
    "big": 12345678901234567890,
    "t": True,
    "no": False,
    "none": None,
    "xs": [3, 1, 2],
    "strs": ["b", "A", "c", "a"],
    "mixed": [1, "two", 3.0, None, True, [4, "it's"], {"k": "v \"q\""}],
    "d": {"b": 1, "a": {"x": [1, 2]}, "items": "shadow", "keys": 5, "get": None, "名": "值"},
    "rows": [{"r": "u", "c": "1"}, {"r": "a", "c": "2"}, {"r": "u", "c": None}, {"r": "t"}],
    "nested": {"type": "array", "items": {"type": "string"}},
}

EXPRESSIONS = """
s.strip() ~ '|' | s.lstrip() ~ '|' | s.rstrip() ~ '|' | 'xxhixx'.strip('x') | 'abcba'.lstrip('ab') | 'a</think>b</think>c'.split('</think>')[-1]
odd.strip()|length | odd|trim|length | odd|tojson | zh[::-1] | zh[1:3] | zh[-2:] | zh[5:] | zh[0] | zh[-1] | zh[99]|default('none') | zh|length
'a b  c'.split() | 'a b  c'.split(' ') | 'a,b,c'.split(',', 1) | 'a,b,c'.rsplit(',', 1) | 'abc'.split('x') | ''.split() | ''.split('x') | odd.split()
'abc'.startswith('a') | 'abc'.startswith(('x', 'a')) | 'abc'.endswith('bc') | 'abc'.endswith('') | 'abc'.startswith('b', 1) | 'a-b'.replace('-', '+') | 'aaa'.replace('a', 'b', 2) | 'aaa'.replace('', '-')
name.upper() | name.title() | name.capitalize() | "it's a dog's".title() | 'ß'.upper() | 'İ'.lower() | 'straße'.title() | name|title | "it's a-b_c"|title | 'ABC def'.swapcase() | name|capitalize
'abc'.find('c') | 'abc'.find('z') | 'abcabc'.rfind('b') | 'abc'.index('b') | 'abcabc'.count('bc') | 'abc'.removeprefix('a') | 'abc'.removesuffix('bc') | 'a-b-c'.partition('-') | 'a-b-c'.rpartition('-') | '7'.zfill(3) | 'x'.center(5, '*') | 'x'.ljust(3) ~ '|' | 'x'.rjust(3)
lines.splitlines() | lines.splitlines(true) | 'a'.join(['1','2']) | ','.join(strs) | '%s-%d' % ('a', 3) | '{} {1}'.format('a') | '{0}-{1}'.format('a', 'b') | '{:>4}|'.format('a') | '%05.2f'|format(3.14159)
'12'.isdigit() | 'a1'.isalnum() | 'ab'.isalpha() | 'A'.isupper() | 'a'.islower() | ' '.isspace() | '½'.isnumeric() | '²'.isdigit() | 'a'.encode() | 'x'.foo() | s.foo | s.foo is defined
n / 2 | n // 2 | n % 4 | neg // 2 | neg % 2 | n ** 2 | 2 ** 0.5 | 2 ** -1 | n * 'ab' | 'ab' * 2 | [1] * 2 | 7.0 // 2 | 1 / 3 | 4 / 2 | n + f | n - none | 'a' + 1 | 'a' ~ 1 ~ none ~ true ~ f | 1 + true | -f | +n | - n ** 2
fs | fs[1] | fs[1] ~ '' | fs|join(' ') | fs|tojson | big | big|tojson | big + 1 | 10 ** 20 | 1e100 | 0.1 + 0.2 | f|int | f|round | 3.567|round(1) | '3.7'|float | 'x'|int | 'x'|int(9) | '0x1f'|int(0, 16) | n|float | n|string ~ 'x' | neg|abs
t | no | none | t|string | none|string | none|tojson | t|tojson | [none, t] | [t, no]|join(',') | not t | t and n | no or 'x' | none or empty or 'last' | n and none | undefinedthing | undefinedthing|tojson | undefinedthing is defined | undefinedthing.x | undefinedthing|length | undefinedthing ~ 'x' | undefinedthing + 'x' | undefinedthing == none | undefinedthing or 'd' | undefinedthing|default('d') | none|default('d') | none|default('d', true) | empty|default('d', true) | undefinedthing|string
xs | xs[0] | xs[-1] | xs[5] is defined | xs[5] | xs[::-1] | xs[1:] | xs[:-1] | xs[::2] | xs|first | xs|last | xs|length | xs|sort | xs|sort(reverse=true) | xs|reverse|list | xs|sum | xs|min | xs|max | xs|join('-') | xs|list | xs|unique|list | [2,2,1]|unique|list | []|first | []|last | xs|random is number | xs + [9] | xs == [3,1,2] | xs < [3,2] | 3 in xs | 9 not in xs | xs|batch(2)|list | xs|slice(2)|list
strs|sort | strs|sort(case_sensitive=true) | strs|map('upper')|list | strs|map('length')|sum | strs|select('equalto', 'a')|list | strs|reject('in', ['a','b'])|list | strs|join | strs|max | 'b' in strs | strs.index('A') | strs.count('a') | strs.append('x') | xs.pop() | d.update({}) | d.pop('b')
mixed | mixed|tojson | mixed|string | mixed|join('|') | mixed[5][1] | mixed|map('string')|list | mixed|length | mixed[6].k | mixed[6]['k'] | {'a': 1, 'b': [true]} | {'a': 1}|tojson | {} | [] | () | (1,) | (1, 2) | (1, 'x')|tojson | {1: 2}|tojson | {1: 2} | {none: 1}|tojson
d | d|tojson | d.b | d['a'].x | d.a.x[1] | d.zzz | d.zzz is defined | d.zzz.y | d['items'] | d.items()|list | d.keys()|list | d.values()|list | d.get('b') | d.get('q') | d.get('q', 4) | d.get('get') | d|length | d|list | d|items|list | d|dictsort | 'b' in d | 'q' in d | d['名'] | d.名 | d|first | d|map('length')|list | d == {} | nested.items()|list | nested['items']['type'] | nested.get('items').type | d|tojson(indent=2) | d|tojson(sort_keys=true) | d|tojson(separators=(',', ':')) | d|tojson(ensure_ascii=true) | zh|tojson(ensure_ascii=true) | '<&\\'>"\\\\/\\u2028\\x7f\\x01\\U0001f600'|tojson | '\\U0001f600'|tojson(ensure_ascii=true) | xs|tojson(indent=4) | []|tojson(indent=2) | {}|tojson(indent=2) | nested|tojson(indent='--')
rows|selectattr('r', 'equalto', 'u')|list|length | rows|rejectattr('r', 'eq', 'u')|map(attribute='r')|list | rows|map(attribute='c')|list | rows|selectattr('c')|map(attribute='c')|join(',') | rows|selectattr('c', 'defined')|list|length | rows|selectattr('c', 'none')|list|length | rows|map(attribute='c', default='-')|list | rows|groupby('r') | rows|map(attribute='r')|unique|join | rows|sort(attribute='r')|map(attribute='r')|join | rows|sum(attribute='q') | rows|last|string | rows[0].r ~ rows[-1].r | rows|join('/', attribute='r')
s is string | n is string | none is string | d is mapping | rows is mapping | rows is iterable | s is iterable | n is iterable | d is iterable | none is iterable | s is sequence | d is sequence | xs is sequence | n is sequence | n is number | t is number | f is number | n is integer | t is integer | f is integer | f is float | n is float | t is boolean | n is boolean | t is true | n is true | 1 is true | no is false | 0 is false | none is none | undefinedthing is none | undefinedthing is undefined | n is odd | n is even | n is divisibleby 7 | 'a' is in 'abc' | n is eq 7 | n is gt 3 | n is sameas 7 | 'A' is upper | 'a' is lower | d.get is callable | s is escaped | undefinedthing is iterable | undefinedthing is string | undefinedthing is mapping | undefinedthing is sequence | undefinedthing is number | none is defined | none is mapping | (1,2) is sequence | range(3) is iterable | range(3) is sequence
1 == 1.0 | 1 == true | '1' == 1 | none == false | 'a' < 'b' | 'a' < 1 | 1 < 2 < 3 | 'ell' in 'hello' | '' in 'x' | 1 in 'x' | none in xs | true in [1] | not 1 == 2 | 1 if n else 2 | (1 if no) is defined | 1 if no | 'x' if none else 'y' | n == 7 and not no or none | 1.0 in xs | [1] == (1,) | {} == {} | n != 7 | 'a' in undefinedthing
s|trim | s|upper | s|lower | '  a'|trim ~ '|' | 'xax'|trim('x') | 'a\\nb'|indent | 'a\\nb'|indent(2, true) | 'a\\n\\nb'|indent(2, blank=true) | 'hello world'|wordcount | 'hello world foo'|truncate(9) | '<b>'|e | '<b>'|escape | '<b>'|safe | '<b>'|striptags | 'a'|center(5) ~ '|' | 'a b/ü'|urlencode | 'abc'|list | 'abc'|reverse | 'abc'|first | 'abc'|last | 'cab'|sort|join | 'hello'|replace('l', 'L') | 'hello'|replace('l', 'L', 1) | 'abc'|map('upper')|join | none|length | n|length | 'x'|abs | 'abc'|batch(2)|list | xs|attr('foo') | 'x'|nofilter | n is notest | 1000000|filesizeformat | 'a'|string | '7'|int + 1 | 'True'|lower == 'true' | d|pprint | 'a b c'|wordwrap(3) | none|trim | n|trim | none|upper | 5|replace('5','6') | xs|string|length | xs|tojson|length | none|list | none|first | none|join
range(3)|list | range(1, 7, 2)|list | range(5, 0, -2)|list | range(3) | range(3)|length | range(3)[1] | dict(a=1, b=2) | dict(a=1)|tojson | namespace(a=1).a | namespace(a=1).b | namespace(a=1).b is defined | cycler('a', 'b').next() | lipsum is defined | dict(d, z=1)|length | range(100001)|length
'a\\x41b' | 'a\\tb' | '\\u5e8a' | 'a\\/b' | 'a\\db' | "a'b" | 'it\\'s' | 'a' 'b' | 1_000 | 0x1F | 1.5e3 | 0b11 | 'a'~'b'|upper | ('a'~'b')|upper | -1|abs | 2 + 3 * 4 ~ 'x' | true and 'yes' or 'no' | True | False | None | 'x'.__class__ | raise_exception('stop') | [x for x in xs] | xs[n] | xs['a'] | d[0] | d[xs] | n.real | xs.0 | d.a.x.0 | (n)(1) | 'x'()
"""

BLOCKS = [
    "{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }};{% endfor %}",
    "{% for x in xs if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}none{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in undefinedthing %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in none %}{{ x }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{% endfor %}",
    "{% for c in zh %}{{ c }}.{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if loop.last %}!{% endif %}{% endfor %}",
    "{% for x in xs %}{% if loop.index == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in xs %}{{ loop.changed(x > 1) }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in rows recursive %}{{ x.r }}{% if loop.depth < 2 %}({{ loop(rows[:1]) }}){% endif %}{% endfor %}",
    "{% for x in xs %}{% for y in xs %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% set a = 1 %}{% for x in xs %}{% set a = x %}{% endfor %}{{ a }}",
    "{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{{ a }}",
    "{% if false %}{% set a = 2 %}{% endif %}{{ a is defined }}",
    "{% set ns = namespace(n=0, xs=[]) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% set ns.xs = ns.xs + [x] %}{% endfor %}{{ ns.n }}{{ ns.xs }}",
    "{% set ns = namespace() %}{% set ns.new = 5 %}{{ ns.new }}",
    "{% set ns = namespace() %}{% set ns._x = 5 %}{{ ns._x }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set block %}  x{{ n }}\n{% endset %}[{{ block }}]{{ block is string }}",
    "{% set block | upper %}x{{ name }}{% endset %}[{{ block }}]",
    "{% macro m(a, b=2, c=none) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m() }} {{ m(1, 2, 3) }}",
    "{% macro m(a) %}{{ a }}{{ caller('x') if caller }}{% endmacro %}{% call(y) m(1) %}[{{ y }}]{% endcall %}{{ m(2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(3) }}",
    "{% macro m() %}  a\n  {% endmacro %}[{{ m() }}][{{ m()|trim }}]",
    "{% filter upper %}abc {{ name }}{% endfilter %}",
    "{% with a = 5, b = n %}{{ a + b }}{% endwith %}{{ a is defined }}",
    "{% if n > 3 %}a{% elif n > 1 %}b{% else %}c{% endif %}",
    "{% if xs %}a{% endif %}{% if empty %}b{% endif %}{% if undefinedthing %}c{% endif %}{% if none %}d{% endif %}{% if 0.0 %}e{% endif %}{% if {} %}f{% endif %}{% if '0' %}g{% endif %}",
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a\n    {% if true %}\n    b\n    {% endif %}\nc",
    "a   {%- if true -%}   b   {%- endif -%}   c",
    "a   {%+ if true +%}   \nb   {% endif %}   c",
    "  {% if true +%}\nb{% endif %}",
    "  {{ n }}  \n  {{- n -}}  \n x",
    "  {# a comment #}\n  b{#- c -#}  \n d",
    "x\n\n",
    "x\r\ny\rz\n",
    "{% raw %}{{ n }}{% if %}{% endraw %}!",
    "{% raw -%}  a  {%- endraw %}!",
    "\n  \n{% for x in xs %}\n\n  {{ x }}\n\n{% endfor %}\n\nend",
    "{{ '\n' }}{{ \"a\nb\" }}",
    "{%- set x = 'a' -%}\n\n{{ x }}\n\n{%- set y = 'b' %}\n{{ y }}",
    "{{ n }}{{ '{{' }}{{ '}}' }}{{ '%}' }}",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a':1}.a }}",
    "{% generation %}x{% endgeneration %}",
    "a\n{%- generation -%}  x{{ n }}  {%- endgeneration %}\nb",
    "{% for x in xs %}{% generation %}{{ x }}{% endgeneration %}\n{% endfor %}",
    "{% do xs.append(1) %}{{ xs }}",
    "{% set x = [] %}{% set _ = x.append(1) %}{{ x }}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% block b %}x{{ n }}{% endblock %}",
    "{% import 'x' as y %}",
    "{% if n %}",
    "{{ n ",
    "{% endif %}",
    "{{ }}",
    "{% unknown %}",
    "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    "{% debug %}",
    "{%for x in xs%}{{x}}{%endfor%}",
    "{{- ' a ' -}} b {{- ' c ' -}}",
    "{% set x %}{% for i in xs %}{{ i }}{% endfor %}{% endset %}{{ x|length }}",
    "{{ xs | map('string') | join(', ') if xs else 'none' }}",
    "{% for m in rows[::-1] %}{{ (rows|length - 1) - loop.index0 }}{{ m.r }}{% endfor %}",
    "{% for m in rows[1:] %}{{ loop.index }}{{ m.r }}{% endfor %}",
    "{% set last = rows[-1] %}{{ last.r }}{{ rows[-2]['r'] }}",
    "{% set rows = rows[1:] %}{{ rows|length }}",
    "{% if rows[0].r == 'u' and rows[0]['c'] is string %}yes{% endif %}",
    "{% for x in xs %}{% set y = loop %}{{ y.index }}{% endfor %}",
    "{% for x in range(3) %}{{ x }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for i in range(3) %}{% for j in range(i) %}{{ i }}{{ j }} {% else %}- {% endfor %}{% endfor %}",
    "{{ messages is defined }}{{ tools is defined }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}",
]


def expressions():
    for line in EXPRESSIONS.strip().splitlines():
        # ` | ` parts expressions, `|` alone is a filter.
        for part in line.split(" | "):
            yield "{{ " + part + " }}"
    yield from BLOCKS
