// The search of the site, in the place of the theme's worker: words of a question, best page first.
//
// The theme's own search finds only sections that have every word. Here a section needs some of
// them, and rare words count more (BM25 over sections and over pages). The theme sends
//   {type: 0, data: {items}}           once, and is answered {type: 1};
//   {type: 2, data: {input, page?}}    a query, and is answered {type: 3, data: results}.
"use strict";

const PAGE_SIZE = 10;
const WEIGHTS = { title: 4, text: 1 };
const K = 2;
const B = 0.6;
const SECTION = 2; // against the page that it is on
const COVERAGE = 1.5;
const SECTIONS_OF_A_PAGE = 3;
// Guides come before what describes the inside; "API" is generated and long.
const GROUPS = { Internals: 0.55, API: 0.6, Decisions: 0.45, Changelog: 0.5, Specification: 0.5 };
const LISTED = new Set(["Home", "Start", "Guides", "Operate", "Reference", "Internals"]);
const UNLISTED = 0.4;

const STOP_WORDS = new Set(
  `a an and any are as at be but by can could did do does for from get had has have how i if in into
   is it its make me my need of on or our set shall should so than that the their them then there these
   they this to us use want was we were what when where which while who whom will with would write
   you your`.split(/\s+/),
);
// What people type, and the word that the pages use.
const SYNONYMS = {
  k8: ["kubernet"], // k8s
  mail: ["email"],
  postgr: ["postgresql"],
  tenanci: ["tenant"],
  tenant: ["tenanci"],
  keda: ["autoscal"],
};

const WORD = /<[^>]*>|&#?\w+;|[\p{L}\p{N}_]+/gu;

function stem(word) {
  let w = word.toLowerCase();
  if (w.length < 4) return w;
  w = w.replace(/ifications?$/, "ify");
  if (w.endsWith("ies")) w = `${w.slice(0, -3)}y`;
  else if (/(ch|sh|ss|x)es$/.test(w)) w = w.slice(0, -2);
  else if (w.endsWith("s") && !/(ss|us|is)$/.test(w)) w = w.slice(0, -1);
  const ending = /^(.*[aeiouy].*?)(ing|ed)$/.exec(w);
  if (ending && ending[1].length > 2) w = ending[1].replace(/([bdgmnprt])\1$/, "$1");
  if (w.length > 4) w = w.replace(/e$/, "");
  return w.replace(/y$/, "i");
}

// The words of HTML and where they stand; tags and entities are passed over. A name such as
// run_after is a word, and so are its parts.
function words(html) {
  const found = [];
  for (const { 0: text, index } of html.matchAll(WORD)) {
    if (text[0] === "<" || text[0] === "&") continue;
    const isName = /[\p{L}\p{N}]_+[\p{L}\p{N}]/u.test(text);
    if (isName) found.push({ stem: text.toLowerCase(), start: index, end: index + text.length });
    for (const part of text.matchAll(/[\p{L}\p{N}]+/gu)) {
      const start = index + part.index;
      found.push({ stem: stem(part[0]), start, end: start + part[0].length, isPart: isName });
    }
  }
  return found;
}

function count(stems) {
  const counts = new Map();
  for (const each of stems) counts.set(each, (counts.get(each) || 0) + 1);
  return counts;
}

// Documents with two fields, and how much each word tells.
class Index {
  constructor(documents) {
    this.documents = documents.map(({ title, text }) => ({
      title: count(title),
      text: count(text),
      lengths: { title: title.length, text: text.length },
    }));
    this.frequency = new Map();
    const total = { title: 0, text: 0 };
    for (const each of this.documents) {
      for (const word of new Set([...each.title.keys(), ...each.text.keys()])) {
        this.frequency.set(word, (this.frequency.get(word) || 0) + 1);
      }
      total.title += each.lengths.title;
      total.text += each.lengths.text;
    }
    const n = Math.max(1, this.documents.length);
    this.average = { title: total.title / n || 1, text: total.text / n || 1 };
  }

  rarity(word) {
    const n = this.frequency.get(word) || 0;
    return Math.log(1 + (this.documents.length - n + 0.5) / (n + 0.5));
  }

  // `terms` has the alternatives of each word of the query with their weights.
  score(place, terms) {
    const { lengths, ...fields } = this.documents[place];
    let score = 0;
    let found = 0;
    let wanted = 0;
    for (const alternatives of terms) {
      let best = 0;
      let rarity = 0;
      for (const [word, weight] of alternatives) {
        let tf = 0;
        for (const name of ["title", "text"]) {
          const n = fields[name].get(word);
          const relative = lengths[name] / this.average[name];
          if (n) tf += (WEIGHTS[name] * n) / (1 - B + B * relative);
        }
        if (!rarity || weight === 1) rarity = this.rarity(word);
        best = Math.max(best, weight * this.rarity(word) * (tf / (K + tf)));
      }
      score += best;
      wanted += rarity;
      if (best) found += rarity;
    }
    return wanted ? score * (found / wanted) ** COVERAGE : 0;
  }
}

// Pages outside the navigation show code or a license.
function factor(path) {
  if (!LISTED.has(path[0])) return UNLISTED;
  return Math.min(1, ...path.map((name) => GROUPS[name] || 1));
}

let items = [];
let sections = null; // the index of sections
let pages = null; // the index of pages
let pageOf = []; // by section
let factors = []; // by page
let vocabulary = [];

function setUp(data) {
  items = data.items;
  const numbers = new Map();
  const whole = [];
  pageOf = items.map((item) => {
    const address = item.location.split("#")[0];
    if (!numbers.has(address)) {
      numbers.set(address, whole.length);
      whole.push({ title: [], text: [] });
      factors.push(factor(item.path));
    }
    return numbers.get(address);
  });
  const documents = items.map((item, place) => {
    const title = words(item.title).map((word) => word.stem);
    const text = words(item.text).map((word) => word.stem);
    const page = whole[pageOf[place]];
    if (item.level <= 1) page.title.push(...title);
    page.text.push(...title, ...title, ...text);
    return { title, text };
  });
  sections = new Index(documents);
  pages = new Index(whole);
  vocabulary = [...sections.frequency.keys()];
}

function distance(a, b, limit) {
  if (Math.abs(a.length - b.length) > limit) return limit + 1;
  let row = Array.from({ length: b.length + 1 }, (_, n) => n);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1));
    }
    row = next;
  }
  return row[b.length];
}

// The words of the pages that a word of the query may mean, with weights.
function alternatives(word, isLast) {
  const found = new Map();
  if (sections.frequency.has(word)) found.set(word, 1);
  for (const other of SYNONYMS[word] || []) if (sections.frequency.has(other)) found.set(other, 0.8);
  if (isLast || !found.size) {
    for (const other of vocabulary) {
      if (other.length > word.length && word.length > 1 && other.startsWith(word)) {
        if (!found.has(other)) found.set(other, found.size ? 0.4 : 0.7);
      }
    }
  }
  if (!found.size && word.length > 3) {
    const limit = word.length > 6 ? 2 : 1;
    for (const other of vocabulary) if (distance(word, other, limit) <= limit) found.set(other, 0.5);
  }
  return found;
}

function parse(input) {
  const all = words(input.replace(/[<&]/g, " "))
    .filter(({ isPart }) => !isPart)
    .map(({ stem, start, end }) => ({ stem, plain: input.slice(start, end).toLowerCase() }));
  const telling = all.filter(({ plain }) => !STOP_WORDS.has(plain));
  const used = telling.length ? telling : all;
  const ended = /\s$/.test(input);
  return used.map(({ stem }, n) => alternatives(stem, n === used.length - 1 && !ended));
}

function find(input) {
  const terms = parse(input);
  if (!terms.length) return [];
  const phrase = input.trim().toLowerCase();
  const ofPage = factors.map((factor, page) => factor * pages.score(page, terms));
  const found = new Map();
  items.forEach((item, place) => {
    const page = pageOf[place];
    if (!ofPage[page]) return;
    let score = sections.score(place, terms);
    if (!score && item.level > 1) return;
    if (phrase.length > 2 && item.title.toLowerCase().includes(phrase)) score *= 1.5;
    if (!found.has(page)) found.set(page, []);
    found.get(page).push({ place, score: factors[page] * score });
  });
  const results = [];
  for (const [page, matches] of found) {
    matches.sort((a, b) => b.score - a.score || a.place - b.place);
    matches.slice(0, SECTIONS_OF_A_PAGE).forEach(({ place, score }, n) => {
      results.push({ place, score: (ofPage[page] + SECTION * score) * (n ? 0.45 : 1) });
    });
  }
  return results.sort((a, b) => b.score - a.score || a.place - b.place).map((each) => ({
    id: each.place,
    score: each.score,
    terms,
  }));
}

// Where the words of the query stand in a field, for the theme to mark them.
function match(id, field, html, terms) {
  const ranges = words(html)
    .filter(({ stem }) => terms.some((each) => each.has(stem)))
    .map(({ start, end }) => ({ start, end, value: end - start }));
  return ranges.length ? [{ id, field, value: { text: [], highlight: { ranges } }, score: 0 }] : [];
}

function answer(query) {
  const input = typeof query.input === "string" ? query.input : "";
  const all = find(input);
  const from = query.page ? query.page.from : 0;
  const shown = all.slice(from, from + PAGE_SIZE).map(({ id, score, terms }) => ({
    id,
    score,
    matches: [
      ...match(id, "title", items[id].title, terms),
      ...match(id, "text", items[id].text, terms),
    ],
  }));
  const at = (place) => ({ id: 0, size: PAGE_SIZE, from: place });
  return {
    items: shown,
    aggregations: [],
    pagination: {
      total: all.length,
      prev: from ? at(Math.max(0, from - PAGE_SIZE)) : undefined,
      next: from + PAGE_SIZE < all.length ? at(from + PAGE_SIZE) : undefined,
    },
  };
}

self.onmessage = ({ data: { type, data } }) => {
  try {
    if (type === 0) {
      setUp(data);
      self.postMessage({ type: 1 });
    } else if (type === 2) {
      self.postMessage({ type: 3, data: answer(data) });
    }
  } catch (error) {
    self.postMessage({ type: 4 });
    throw error;
  }
};
