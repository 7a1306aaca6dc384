-- Counts every check, unless one of them would be over its limit: then only those that would be. What is given
-- back is given back in either case. A check is a key, and hits, a limit, seconds to live, and its member: 0 alone,
-- 3 alone under a key that may live too short, 1 the first of a group and 2 the next; a group is counted
-- only if none of it is over. Returns each counter as it is afterwards, and what became of it: 0 counted, 1 looked
-- at, 2 refused.
local told, over, any_over = {}, {}, false
-- Beyond 2^62, which is over every limit, a double may be no integer of Redis.
local MOST = 4611686018427387904

local function read(key)
  local text = redis.call('GET', key)
  if text and not string.find(text, '^-?%d+$') then
    return nil
  end
  return tonumber(text or '0'), not text
end

local function is_over(i, count)
  return math.max(count + tonumber(ARGV[4 * i - 3]), 0) > tonumber(ARGV[4 * i - 2])
end

local function add(i, count, is_new)
  local key, seconds = KEYS[i], ARGV[4 * i - 1]
  local hits = math.max(tonumber(ARGV[4 * i - 3]), -count)
  if hits == 0 then
    return count
  elseif is_new then
    redis.call('SET', key, string.format('%.0f', hits), 'EX', seconds)
    return hits
  end
  -- A counter that can hold no more says so, and is left as it is.
  local after = redis.pcall('INCRBY', key, string.format('%.0f', hits))
  count = type(after) == 'number' and after or count
  if ARGV[4 * i] == '3' and redis.call('TTL', key) < tonumber(seconds) then
    redis.call('EXPIRE', key, seconds)
  end
  return count
end

for i, key in ipairs(KEYS) do
  local count = read(key)
  if not count then
    return { err = 'ERR value is not an integer or out of range' }
  end
  over[i] = is_over(i, count)
  any_over = any_over or over[i]
end
local first = 1
while first <= #KEYS do
  local last, is_group, is_refused = first, ARGV[4 * first] == '1', any_over
  while ARGV[4 * (last + 1)] == '2' do
    last = last + 1
  end
  for i = first, last do
    -- A key may be there twice: its count is read anew.
    is_refused = is_refused or is_group and is_over(i, (read(KEYS[i])))
  end
  for i = first, last do
    local count, is_new = read(KEYS[i])
    if is_refused and tonumber(ARGV[4 * i - 3]) >= 0 and (is_group or not over[i]) then
      told[2 * i - 1], told[2 * i] = math.min(count, MOST), is_group and is_over(i, count) and 2 or 1
    else
      told[2 * i - 1], told[2 * i] = math.min(add(i, count, is_new), MOST), 0
    end
  end
  first = last + 1
end
return told
