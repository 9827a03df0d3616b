"""Labels and texts that say that there is no answer, in several languages."""

import re
import unicodedata
from collections.abc import Mapping
from typing import TypeVar

Code = TypeVar("Code", float, str)
_WHOLE = re.compile(
    r"na|n a|nan|null|dk|d k|dk na|na dk|dk ref|dk nr|dk rf|ref|rf|refuse|iap|inap|nap|nr|n r|ns|n s|nk|msv|sysmis|"
    r"sys miss|miss|blank|empty|skip|filter|error|invalid|void|omitted|decline|undefined|not coded|uncoded|no info|"
    r"no idea|idk|niu|breakoff|bortfall|perdido|nspp|n c|ka|k a|wn|w n|tnz|nsp|n s p|nc|ns nr|ns nc|nvt|n v t|nd|n d|bo"
)
"""Labels that are no more than this, without punctuation."""

_PHRASES = (
    # English
    r"refus(ed|al|es|e to)",
    r"declin(e|ed|es|ing) to|declined",
    r"(prefer|rather|choose|chose|wish|want|like)(red|s|d)? not( to)? (answer|say|respond|disclose|tell|state|share|"
    r"specify)",
    r"prefer(red|s)? not to",
    r"(do|does|did) ?n?o?t (wish|want|like) to",
    r"((do|does|did|can|could|have|has) ?n?o?t|unable to|not able to|hard to|difficult to) (know|known|say|answer|"
    r"answered|respond|choose|remember|recall|tell|rate|judge|disclose|specify|state)",
    r"no (answer|response|responses|reply|data|information|valid answer|value|entry|report|record|rating|interview|"
    r"diary|questionnaire)",
    r"not (stated|answered|asked|ascertained|available|known|reported|recorded|given|provided|specified|selected|"
    r"in universe|administered|collected|codable|codeable|determined|determinable|shown|presented|interviewed|tested|"
    r"assessed|evaluated|disclosed|declared|indicated|classifiable|classified|completed|obtained|reached|filled|"
    r"readable|legible|imputed|coded|interpretable|seen|stated|measured|done|performed|marked|entered|released)",
    r"inapplicable|unanswered|uncod(e)?able|undetermined|unspecified|unstated|unreported|unclassifiable|unknown|unasked|"
    r"unavailable|undisclosed",
    r"missing|item non ?response|unit non ?response|non ?respon(se|dent)|(left|web|cawi|valid) blank|seen but unanswered",
    r"coding error|data error|punch error|entry error|out of range|illegible|invalid (answer|code|response|value)|"
    r"skipped|question skipped|routed (out|around)|legitimate skip|valid skip|lost data|data lost|proxy interview|"
    r"proxy respondent|multiple (answers?|marks?|responses?)|(interviewer|interview|filter) error|partial interview",
    # German
    r"weiss (es )?nicht|weiss ich nicht|(kann|konnte) (mich|sich) nicht erinnern|(keine|habe keine) ahnung",
    r"keine? (angaben?|antwort|antworten|daten|information|auskunft|nennung|bewertung|wertung|aussage)|ohne (angaben?|"
    r"antwort)",
    r"(antwort|aussage|auskunft|angabe) (verweigert|fehlt|nicht moglich)|verweiger(t|ung|e)",
    r"nicht (bestimmbar|gefragt|erhoben|beantwortet|bekannt|angegeben|beurteilbar|lesbar|auswertbar|ermittelbar|teilgenommen|"
    r"erreicht|gestellt|vercodbar|gesehen)",
    r"(mochte|will|wollte) (dazu |ich )?(nicht|nichts|keine)|kann (ich )?(dazu )?(nicht|nichts|keine) (sagen|beurteilen|"
    r"angeben|antworten)",
    r"unbekannt|fehlend(er|e|es)?( wert)?|fehlt|entfallt|filterbedingt|mehrfachnennung|datenfehler|kodierfehler|filterfehler|"
    r"(ungultig|unplausibel|unplausibler wert|unplausible angabe)(er|e|es)?|"
    r"interviewabbruch|uberspr(u)?ngen",
    # French
    r"(ne |n )?(sait|sais|savent) pas|n a pas repondu|pas repondu|nsp|ne se prononce|je ne me prononce",
    r"(sans|pas de|aucune) (reponse|objet|donnee|information|indication)|non (reponse|repondu|concerne|applicable|"
    r"renseigne|precise|specifie|disponible|communique|declare|determine|demande|pertinent)e?s?|pas (concerne|"
    r"applicable|repondu|renseigne)e?",
    r"refus|refuse(nt)?( de repondre)?|(souhaite|veut|desire|prefere|preferent) (pas|ne pas)( \w+)?|"
    r"valeurs? manquantes?|manquante?|inconnue?",
    # Spanish
    r"(no|ns) (sabe|saben|contesta|contesto|responde|respondio|recuerda|procede|consta|aplica|aplicable|corresponde|"
    r"disponible|especificad[oa]|respondid[oa]|contestad[oa]|declarad[oa]|indicad[oa]|informa)|ns nc|ns nr|no lo se|"
    r"no se|no sabria( \w+)?",
    r"sin (respuesta|datos?|informacion|contestar|especificar|contestacion)|se (niega|nego|rehusa|rehuso)|rehusa|"
    r"rechaz[oa]|prefier[eo] no|prefiero no|desconoc(e|ido|ida)|valor(es)? perdidos?|dato(s)? perdidos?|"
    r"perdido por el sistema|ninguna respuesta",
    # Italian
    r"non (sa|so|risponde|risposto|risposta|applicabile|pertinente|disponibile|indicato|dichiarato|specificato|rilevato|"
    r"ricorda|noto|previsto|riguarda|vuole|intende|fornito)|(nessuna|senza|mancata) risposta|rifiut[ao]|(dato|dati|"
    r"valore) mancanti?e?|mancante|sconosciut[oa]|ignoto|preferisc[eo] non",
    # Portuguese
    r"nao (sabe|sei|respond\w*|se aplica|aplicavel|informad[oa]|informou|declarad[oa]|disponivel|lembra|quer|quis|"
    r"consta|especificad[oa])|(sem|nenhuma) (resposta|informacao|dados|declaracao)|recus(a|ou|ado|o)(-se)?|"
    r"prefer[eo] nao|prefiro nao|desconhecid[oa]|ignorad[oa]|em branco|omiss[oa]",
    # Dutch
    r"weet( ik)?( het)? niet|weet niet|geen (antwoord|opgave|reactie|gegevens|informatie)|weiger(t|ing|de)|geweigerd|"
    r"(wil|wenst|wilde) (het )?niet|zeg ik liever niet|liever niet|onbekend|ontbree?kt|ontbrekend|niet (beantwoord|"
    r"ingevuld|gevraagd|bekend|vermeld|gesteld|ingevuld)",
    # Swedish, Danish and Norwegian
    r"(vet|ved) (ej|inte|ikke|icke)|(ej|inget|ingen|intet) svar|ubesvare?t|obesvarad|(vill|vil|onskar|onsker) (ej|inte|"
    r"ikke)( \w+)?|(ej|inte|ikke) (aktuell|aktuellt|aktuelt|tillampligt|tillampbar|besvart|besvaret|besvarat|oppgitt|"
    r"angivet|stillet|spurt)|uppgift saknas|saknas|mangler|manglende|ukjent|ukendt|okand|okant|uoplyst|nekter|vagrar|"
    r"internt bortfall",
    # Polish, Romanian and Czech
    r"nie (wiem|wie|dotyczy|odpowiedz\w*|pamieta\w*|zadano)|trudno powiedziec|brak (odpowiedzi|danych|informacji)|"
    r"odmow\w*|odmawia\w*|nieznan\w*",
    r"nu (stiu|stie|raspund|raspunde|se aplica|e cazul)",
    r"nevi|nevim|bez odpovedi|neodpovede\w*|odmit\w*|neuveden\w*|netyka se|neni znamo|chybejici",
    # Finnish, Hungarian and Turkish
    r"(ei|en) (osaa sanoa|tieda|tietoa|vastausta|vastannut|halua|halunnut|koske|sovellu)|puuttuu|puuttuva( tieto)?|"
    r"kieltaytyi|kieltaytyy",
    r"nem (tudja|tudom|valaszol\w*|vonatkozik|ertelmezheto|ismert)|valasz ?hiany|megtagadta|nincs valasz",
    r"bilmiyor\w*|cevap (yok|vermek istemiyor\w*|vermedi)|yanit (yok|vermedi)|cevapsiz|uygulanamaz|uygun degil|reddetti|"
    r"fikri yok",
    # Russian, Ukrainian and Greek
    r"не (знаю|знает|применимо|указано|отвечал|ответил\w*|хочу отвечать|задавался|помню)|затрудня\w+|нет (ответа|"
    r"данных)|отказ\w*|неприменимо|неизвестно|пропуск|пропущено|не знаю|немає відповіді|відмов\w*|важко сказати",
    r"δεν (γνωριζω|γνωριζει|ξερω|ξερει|απαντω|απαντα|απαντησε|ισχυει|εφαρμοζεται)|δγ δα|δξ δα|αρνηση|αρνηθηκε|αγνωστο",
)
_ANYWHERE = re.compile(
    r"不知道|不清楚|说不清|拒答|拒绝|不适用|不適用|无回答|無回答|未回答|没有回答|不回答|缺失|漏答|わからない|分からない|答えたくない|回答拒否|非該当|無効|不明|"
    r"모름|무응답|응답 ?거절|해당 ?없음|"
    r"해당 ?사항 ?없음|모르겠|לא יודע|סירב|מסרב|לא ענה|לא רלוונטי|ללא תשובה|لا اعرف|لا أعرف|رفض|غير معروف|لا ينطبق|لا اجابة|"
    r"لا إجابة"
)
_PATTERN = re.compile(rf"(?<!\w)({'|'.join(_PHRASES)})(?!\w)")
_AT_AN_END = re.compile(
    r"(?<!\w)(not (quite |really )?sure|unsure|undecided|uncertain|no opinion|no preference|cant choose|keine meinung|"
    r"unentschieden|weder noch|unsicher|sans (opinion|avis)|sin opinion|no tiene opinion|nessuna opinione|sem opiniao|"
    r"geen mening|ingen (asikt|mening|uppfattning)|brak zdania|nie mam zdania|nenazor|bez nazoru|ei mielipidetta|"
    r"kein urteil|can ?n?o?t decide)(?!\w)"
)
_APPLIES = re.compile(
    r"(?<!\w)((do|does|did) ?n?o?t apply|trifft nicht zu|nicht zutreffend|ne s applique pas|no se aplica|non si applica|"
    r"nao se aplica|niet van toepassing|not applicable|not relevant|nicht (anwendbar|relevant)|(ej|inte|ikke) relevant|"
    r"non (applicable|pertinente?)|no aplicable|nao aplicavel)(?!\w)"
)
_APPLICATION = re.compile(r"appl|trifft|zutreff|toepassing|relevan")


_ABBREVIATION, _ALIKE = 3, 5


def sounds_like_no_answer(label: str) -> bool:
    """Check whether the label of a code says that there is no answer, whatever the labels of other codes are."""
    plain = _plain(label)
    found = _WHOLE.fullmatch(plain) or _PATTERN.search(plain) or _APPLIES.search(plain) or _ANYWHERE.search(label.casefold())
    return bool(found)


def words_of_no_answer(labels: Mapping[str, str]) -> set[str]:
    """Return the words, given with their labels, that say that there is no answer.

    An abbreviation such as DK is a name among many of its kind, such as codes of countries.
    """
    like = [label for label in labels.values() if _is_abbreviation(label)]
    among_names = len(like) > _ALIKE and 5 * len(like) >= 4 * len(labels)
    return {word for word, label in labels.items() if sounds_like_no_answer(label) and not (among_names and _is_abbreviation(label))}


def is_denial(word: str) -> bool:
    """Check whether a word denies a statement, such as no and unchecked, which is the lower answer of two."""
    return bool(_DENIAL.fullmatch(_plain(word)))


_DENIAL = re.compile(
    r"no|non|nein|nee|nej|nei|nao|nie|ne|ei|hayir|нет|ні|οχι|n|f|false|falsch|faux|falso|off|absent|never|none|(un|not )(checked|"
    r"selected|ticked|marked|mentioned|chosen|true)"
)


def _is_abbreviation(label: str) -> bool:
    return 2 <= len(label) <= _ABBREVIATION and label.isalpha() and label.isupper()


def labels_of_no_answer(labels: Mapping[Code, str]) -> set[Code]:
    """Return the codes, given in their order, whose labels say that there is no answer.

    A label such as not sure is the middle of a scale unless it is at an end of the codes, and does not apply is an answer beside applies.
    """
    plain = {code: _plain(label) for code, label in labels.items()}
    found = {code for code, label in labels.items() if _ANYWHERE.search(label.casefold())}
    found |= {code for code, words in plain.items() if _WHOLE.fullmatch(words) or _PATTERN.search(words)}
    applies = {code for code, words in plain.items() if code not in found and _APPLIES.search(words)}
    if not any(_APPLICATION.search(words) for code, words in plain.items() if code not in found | applies):
        found |= applies
    codes = [code for code in labels if code not in found]
    while codes and _AT_AN_END.search(plain[codes[-1]]):
        found.add(codes.pop())
    while codes and _AT_AN_END.search(plain[codes[0]]):
        found.add(codes.pop(0))
    return found


def _plain(label: str) -> str:
    """Return a label in lower case, without accents, punctuation and the code that it may begin with."""
    text = re.sub("[’‘`´ʼ]", "'", label.casefold()).replace("n't", "nt")
    decomposed = unicodedata.normalize("NFKD", text.replace("ł", "l").replace("ø", "o"))
    letters = "".join(character for character in decomposed if not unicodedata.combining(character))
    return re.sub(r"^\d+ (?=\D)", "", " ".join(re.sub(r"[\W_]+", " ", letters).split()))
