// Payload types of sealbus, written by `sealbus type export --typescript`. Do not edit.
// Each name is a zod schema and the type of its values: `TaskRequest.parse(JSON.parse(text))`.
// Unknown members are allowed and kept. A schema's verdict is that of sealbus itself.
import { z } from "zod";

type Data = Record<string, unknown>;

/** Code points, as sealbus counts them; a string's length counts UTF-16 units. */
const points = (text: string): number => {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
};
const sized = (least: number, most: number) => (text: string): boolean => {
  const count = points(text);
  return count >= least && count <= most;
};
const absent = (value: unknown): boolean => value === undefined || value === null;
const valueOf = (d: Data, field: string, byDefault?: unknown): unknown =>
  d[field] === undefined ? byDefault : d[field];
const sizeOf = (value: unknown): number =>
  typeof value === "string" ? points(value) : Array.isArray(value) ? value.length : 0;
const itemsOf = (value: unknown): Data[] =>
  absent(value) ? [] : Array.isArray(value) ? (value as Data[]) : [value as Data];
const bytesOf = (value: unknown): number =>
  value === undefined ? 0 : new TextEncoder().encode(JSON.stringify(value)).length;
const daysIn = (year: number, month: number): number =>
  month === 2 ? (year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0) ? 29 : 28) : [4, 6, 9, 11].includes(month) ? 30 : 31;
const isInstant = (text: string): boolean => {
  const found =
    /^(\d{4})-(\d{2})-(\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:\.\d+)?(?:[Zz]|[+-](\d{2}):(\d{2}))$/.exec(text);
  if (found === null) return false;
  const [year, month, day, hour, minute, second] = found.slice(1, 7).map(Number) as [number, number, number, number, number, number];
  const [hours, minutes] = [Number(found[7] ?? 0), Number(found[8] ?? 0)];
  return (
    year >= 1 && month >= 1 && month <= 12 && day >= 1 && day <= daysIn(year, month) &&
    hour <= 23 && minute <= 59 && second <= 59 && hours <= 23 && minutes <= 59
  );
};
const canonical = (value: unknown): string => {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const data = value as Data;
  return `{${Object.keys(data).sort().map((key) => `${JSON.stringify(key)}:${canonical(data[key])}`).join(",")}}`;
};
/** SHA-256 (FIPS 180-4) of the canonical form (RFC 8785). */
const hashOf = (value: unknown): string => {
  const rotate = (word: number, by: number): number => (word >>> by) | (word << (32 - by));
  const primes: number[] = [];
  for (let n = 2; primes.length < 64; n += 1) if (primes.every((prime) => n % prime !== 0)) primes.push(n);
  const fraction = (root: number): number => Math.floor((root - Math.floor(root)) * 2 ** 32) | 0;
  const constants = primes.map((prime) => fraction(Math.cbrt(prime)));
  const state = primes.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
  const bytes = new TextEncoder().encode(canonical(value));
  const padded = new Uint8Array((((bytes.length + 8) >> 6) + 1) << 6);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const view = new DataView(padded.buffer);
  view.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  view.setUint32(padded.length - 4, bytes.length << 3);
  for (let start = 0; start < padded.length; start += 64) {
    const w = Array.from({ length: 16 }, (_, place) => view.getInt32(start + place * 4));
    for (let t = 16; t < 64; t += 1) {
      const [a, b] = [w[t - 15]!, w[t - 2]!];
      const s0 = rotate(a, 7) ^ rotate(a, 18) ^ (a >>> 3);
      const s1 = rotate(b, 17) ^ rotate(b, 19) ^ (b >>> 10);
      w.push((w[t - 16]! + s0 + w[t - 7]! + s1) | 0);
    }
    let [a, b, c, d, e, f, g, h] = state as [number, number, number, number, number, number, number, number];
    for (let t = 0; t < 64; t += 1) {
      const s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
      const one = (h + s1 + ((e & f) ^ (~e & g)) + constants[t]! + w[t]!) | 0;
      const s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
      const two = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((word, place) => (state[place] = (state[place]! + word) | 0));
  }
  return "sha256:" + state.map((word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
};
const hasUnboundRef = (value: unknown): boolean => {
  if (Array.isArray(value)) return value.some(hasUnboundRef);
  if (typeof value !== "object" || value === null) return false;
  const data = value as Data;
  return (typeof data.uri === "string" && typeof data.sha256 !== "string") || Object.values(data).some(hasUnboundRef);
};
