local limits, replies = {}, {}
for i = 2, #ARGV do
  local letter, unit, seconds, one, two, three, hits, times, at = unpacked('<c1c1I4I8I8I8i8I4', ARGV[i])
  if letter ~= 'c' and not second then
    local now = call('TIME')
    second, micros = tonumber(now[1]), tonumber(now[2])
  end
  local runs = { hits, times }
  while at <= #ARGV[i] do
    runs[#runs + 1], runs[#runs + 2], at = unpacked('<i8I4', ARGV[i], at)
  end
  local apply, size, load, add = algorithms[letter](seconds, one, two, three, unit == 'a')
  limits[i - 1] = {
    letter = letter, unit = unit, seconds = seconds, runs = runs, apply = apply, size = size, load = load, add = add,
    -- A shorter window that began at the same time may have created the counter.
    may_expire = letter == 'c' and two == 1
  }
end
